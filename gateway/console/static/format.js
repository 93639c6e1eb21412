// Numbers as people read them. An en dash stands for what is not known.

export const NONE = "–";

export function count(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 1e6) return `${(value / 1e6).toFixed(value >= 1e7 ? 0 : 1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)}k`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(1)}k`;
  return value % 1 === 0 || value >= 100 ? String(Math.round(value)) : value.toFixed(1);
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms >= 60000) return `${(ms / 60000).toFixed(1)} min`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10000 ? 1 : 2)} s`;
  return ms >= 10 ? `${Math.round(ms)} ms` : `${ms.toFixed(1)} ms`;
}

export function percent(share) {
  if (share === null || share === undefined) return NONE;
  return share > 0 && share < 0.005 ? "<1%" : `${Math.round(share * 100)}%`;
}

export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour12: false });
}

// An element: h("span", {class: "x", title: "y"}, child, "text").
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Writes only what differs: most of a page stays as it is from one second to the next.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const byId = (id) => document.getElementById(id);
