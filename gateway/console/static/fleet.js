// The fleet map: one tile a replica. Many replicas make small tiles.

import { byId, count, h, NONE, percent, setText } from "./format.js";
import { stateOf, STATES } from "./state.js";

const ROOMY = 16; // more replicas than that make compact tiles

const tiles = new Map(); // url -> {tile, parts}
let filter = null;

// `open` is called with the URL of a replica whose tile was activated.
export function drawFleet(state, open) {
  const rows = [...state.workers.values()];
  const list = byId("tiles");
  list.classList.toggle("compact", rows.length > ROOMY);
  byId("no-workers").hidden = rows.length > 0;
  byId("flush").disabled = rows.length === 0;
  for (const [url, { tile }] of tiles) {
    if (!state.workers.has(url)) {
      tile.remove();
      tiles.delete(url);
    }
  }
  const shared = rows.length > ROOMY ? sharedStart(rows.map((row) => row.name)) : 0;
  const busiest = Math.max(8, ...rows.map((row) => row.in_flight));
  for (const row of rows) {
    let entry = tiles.get(row.url);
    if (!entry) {
      entry = make(row, open);
      tiles.set(row.url, entry);
      list.append(entry.tile);
    }
    fill(entry, row, busiest, shared);
  }
  drawStates(rows, state, open);
}

function make(row, open) {
  const part = (name, ...children) => h("span", { class: name }, ...children);
  const parts = { mark: part("state"), name: part("name"), said: part("said"), few: part("few"), kv: part("kv"), usage: part("value"), load: part("load-fill") };
  parts.running = part("value");
  parts.hit = part("value");
  parts.speed = part("value");
  const bar = part("bar", parts.kv);
  const button = h(
    "button",
    { type: "button", class: "tile" },
    part("tile-head", parts.mark, parts.name, parts.said, parts.few),
    part("meter", part("label", "KV"), bar, parts.usage),
    part("meter load", part("label", "Load"), part("bar", parts.load), parts.running),
    part("facts", part("fact", part("label", "hits "), parts.hit), part("fact", parts.speed, part("label", " tok/s"))),
  );
  button.addEventListener("click", () => open(row.url));
  const tile = h("li", {}, button);
  return { tile, button, parts };
}

function fill({ tile, button, parts }, row, busiest, shared) {
  const state = stateOf(row);
  button.dataset.state = state;
  tile.hidden = filter !== null && filter !== state;
  setText(parts.name, row.name.slice(shared));
  setText(parts.few, count(row.in_flight));
  parts.few.classList.toggle("some", row.in_flight > 0);
  setText(parts.said, state === "ready" ? "" : state);
  button.title = state === "ready" ? row.name : `${row.name}: ${row.note || STATES[state]}`;
  setText(parts.usage, percent(row.usage));
  parts.kv.style.setProperty("width", `${Math.round(100 * (row.usage ?? 0))}%`);
  parts.kv.classList.toggle("hot", row.usage > 0.9);
  const waits = row.waiting ? `+${row.waiting}` : "";
  setText(parts.running, `${count(row.in_flight)}${waits}`);
  parts.load.style.setProperty("width", `${Math.round((100 * row.in_flight) / busiest)}%`);
  setText(parts.hit, percent(row.hit_rate));
  setText(parts.speed, row.tokens_per_s === null ? NONE : count(row.tokens_per_s));
  button.setAttribute(
    "aria-label",
    `${row.name}, ${state}, ${row.in_flight} in flight${row.waiting ? `, ${row.waiting} waiting` : ""}, KV pool ${percent(row.usage)}, hit rate ${percent(row.hit_rate)}`,
  );
}

// How many characters all names begin with, up to a separator: small tiles show what comes after.
export function sharedStart(names) {
  const [first] = names;
  let length = first.length;
  for (const name of names) {
    while (!name.startsWith(first.slice(0, length))) length -= 1;
  }
  return Math.max(first.slice(0, length).search(/[^:./_-]*$/), 0);
}

// How many are in which state; each is a switch that shows only those.
function drawStates(rows, state, open) {
  const numbers = new Map();
  for (const row of rows) numbers.set(stateOf(row), (numbers.get(stateOf(row)) ?? 0) + 1);
  if (filter !== null && !numbers.has(filter)) filter = null;
  const box = byId("states");
  const wanted = Object.keys(STATES).filter((name) => numbers.has(name));
  if (box.dataset.shown !== wanted.join()) {
    box.dataset.shown = wanted.join();
    box.replaceChildren(...wanted.map((name) => chip(name, () => {
      filter = filter === name ? null : name;
      drawFleet(state, open);
    })));
  }
  for (const button of box.children) {
    setText(button.lastChild, `${numbers.get(button.dataset.state)} ${button.dataset.state}`);
    button.setAttribute("aria-pressed", String(filter === button.dataset.state));
  }
}

function chip(name, toggle) {
  const button = h("button", { type: "button", class: "chip", title: STATES[name] }, h("span", { class: "state" }), h("span", {}, ""));
  button.dataset.state = name;
  button.addEventListener("click", toggle);
  return button;
}
