// Line charts drawn by hand as SVG: up to five minutes, a point a second, a crosshair that says what was when.

import { byId, clock, h } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const SPANS_S = [60, 120, 300]; // the shortest that holds all points, else the longest
const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;

function svg(name, attributes = {}) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// A round number at or above `value`, so that the axis does not change with every point.
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((top) => top >= value);
}

export class Chart {
  // `lines`: [{field, className, label}]; `format`: a value as text; `area`: fill under the first line.
  constructor(id, { lines, format, area = false }) {
    this.lines = lines;
    this.format = format;
    this.points = [];
    this.hover = null;
    const box = byId(id);
    this.box = h("div", { class: "plot" });
    this.svg = svg("svg", { role: "img" });
    this.grid = svg("g", { class: "grid" });
    this.fill = area ? svg("path", { class: "area" }) : null;
    this.paths = lines.map(({ className }) => svg("path", { class: className }));
    this.cross = svg("g", { class: "cross" });
    this.svg.append(this.grid, ...(this.fill ? [this.fill] : []), ...this.paths, this.cross);
    this.tip = h("div", { class: "tip", hidden: true });
    this.empty = h("p", { class: "plot-empty" }, "Nothing to show yet");
    this.box.append(this.svg, this.tip, this.empty);
    box.append(this.box);
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.box.addEventListener("pointermove", (event) => {
      this.hover = event.clientX - this.box.getBoundingClientRect().left;
      this.draw();
    });
    this.box.addEventListener("pointerleave", () => {
      this.hover = null;
      this.draw();
    });
  }

  show(points) {
    this.points = points;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    const last = this.points.at(-1);
    if (!width || !last) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const values = this.points.flatMap((point) => this.lines.map(({ field }) => point[field] ?? 0));
    const top = ceiling(Math.max(...values));
    const age = last.at - this.points[0].at;
    const span = SPANS_S.find((one) => one >= age) ?? SPANS_S.at(-1);
    const x = (at) => LEFT + ((at - last.at + span) / span) * (width - LEFT - 2);
    const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
    this.empty.hidden = values.some((value) => value > 0);
    this.#axes(width, height, top, x, y, span);
    for (const [index, { field }] of this.lines.entries()) this.paths[index].setAttribute("d", path(this.points, field, x, y));
    if (this.fill) this.fill.setAttribute("d", area(this.points, this.lines[0].field, x, y));
    const said = this.lines.map(({ field, label }) => `${label} ${this.format(last[field])}`);
    this.svg.setAttribute("aria-label", `Now ${said.join(", ")}`);
    this.#crosshair(width, height, x, y);
  }

  #axes(width, height, top, x, y, span) {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      if (share && !this.empty.hidden) continue;
      const at = y(top * share);
      parts.push(svg("line", { x1: LEFT, x2: width, y1: at, y2: at }));
      const label = svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" });
      label.textContent = share ? this.format(top * share) : "0";
      parts.push(label);
    }
    for (const [ago, text, anchor] of [[span, `${span / 60} min ago`, "start"], [0, "now", "end"]]) {
      const label = svg("text", { x: x(this.points.at(-1).at - ago), y: height - 4, "text-anchor": anchor });
      label.textContent = text;
      parts.push(label);
    }
    this.grid.replaceChildren(...parts);
  }

  #crosshair(width, height, x, y) {
    const visible = this.hover !== null && this.hover >= LEFT;
    const point = visible && nearest(this.points, this.hover, x);
    this.tip.hidden = !point;
    this.cross.replaceChildren();
    if (!point) return;
    const at = x(point.at);
    this.cross.append(svg("line", { x1: at, x2: at, y1: TOP, y2: height - BOTTOM }));
    for (const { field, className } of this.lines) {
      if (point[field] !== null) this.cross.append(svg("circle", { class: className, cx: at, cy: y(point[field]), r: 3 }));
    }
    const said = this.lines.map(({ field, label }) => `${label} ${this.format(point[field])}`);
    this.tip.textContent = `${clock(point.at)}  ${said.join("  ")}`;
    this.tip.style.setProperty("left", `${Math.min(Math.max(at, LEFT + 70), width - 80)}px`);
  }
}

function nearest(points, px, x) {
  let best = null;
  for (const point of points) {
    if (best === null || Math.abs(x(point.at) - px) < Math.abs(x(best.at) - px)) best = point;
  }
  return best;
}

// Gaps where there is no value, and where the page was away for more than some seconds.
function runs(points, field) {
  const all = [];
  let run = [];
  let before = null;
  for (const point of points) {
    const missing = point[field] === null || point[field] === undefined;
    if (run.length && (missing || point.at - before > 5)) {
      all.push(run);
      run = [];
    }
    if (!missing) run.push(point);
    before = point.at;
  }
  if (run.length) all.push(run);
  return all;
}

function path(points, field, x, y) {
  return runs(points, field)
    .map((run) => run.map((point, i) => `${i ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point[field]).toFixed(1)}`).join("") + (run.length === 1 ? "h1" : ""))
    .join("");
}

function area(points, field, x, y) {
  return runs(points, field)
    .map((run) => `M${x(run[0].at).toFixed(1)} ${y(0)}` + run.map((point) => `L${x(point.at).toFixed(1)} ${y(point[field]).toFixed(1)}`).join("") + `L${x(run.at(-1).at).toFixed(1)} ${y(0)}Z`)
    .join("");
}

// A small line without axes, for a replica's details.
export function sparkline(values, top, label) {
  const element = svg("svg", { class: "spark", viewBox: "0 0 120 28", preserveAspectRatio: "none", role: "img", "aria-label": label });
  const step = 120 / 59;
  const start = 120 - (values.length - 1) * step;
  const line = values.map((value, i) => `${i ? "L" : "M"}${(start + i * step).toFixed(1)} ${(26 - (24 * (value ?? 0)) / top).toFixed(1)}`);
  element.append(svg("path", { d: line.join("") }));
  return element;
}
