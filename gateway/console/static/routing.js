// The feed of routing decisions, and how often which reason decided in the last minute.

import { byId, clock, count, duration, h, NONE, setText } from "./format.js";

const WINDOW = 60;
const ROWS = 30;

const WHY = {
  prefix: "holds the longest useful prefix",
  spread: "no replica holds it: cheapest one",
  load: "least loaded",
  least_load: "least loaded",
  round_robin: "next in turn",
  random: "drawn",
  power_of_two: "less loaded of two drawn",
  key: "home of its routing key",
  no_key: "no routing key was sent",
  prefix_hash: "home of the prompt's beginning",
  spill: "its home is full",
  sticky: "home of its session",
  assigned: "a new session's home",
  bucket: "replicas for this length",
};

const rows = new Map(); // key -> {row, parts}
let paused = false;

export function setUpRouting() {
  const button = byId("pause");
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    setText(button, paused ? "Resume" : "Pause");
  });
}

export function drawRouting(state) {
  setText(byId("policy"), state.facts.policy ?? "");
  drawReasons(state.points.slice(-WINDOW));
  if (paused) return;
  const shown = state.decisions.slice(0, ROWS);
  byId("no-requests").hidden = shown.length > 0;
  const keys = new Set(shown.map((one) => one.key));
  for (const [key, { row }] of rows) {
    if (!keys.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
  const body = byId("feed");
  for (const decision of [...shown].reverse()) {
    let entry = rows.get(decision.key);
    if (!entry) {
      entry = make(decision);
      rows.set(decision.key, entry);
      body.prepend(entry.row);
    }
    update(entry, decision);
  }
}

function make(decision) {
  const cell = (label, className, ...children) => h("td", { "data-label": label, class: className }, ...children);
  const parts = { ttft: h("span"), took: h("span"), status: h("span", { class: "status" }) };
  const again = decision.attempt > 1 ? [h("span", { class: "again" }, `attempt ${decision.attempt}`)] : [];
  const why = WHY[decision.reason] ?? decision.reason.replaceAll("_", " ");
  const row = h(
    "tr",
    { title: `Request ${decision.request}` },
    cell("Time", "time", clock(decision.at)),
    cell("Replica", "who", decision.worker),
    cell("Why", "why", h("span", { class: "reason", "data-reason": decision.reason }, decision.reason.replaceAll("_", " ")), ` ${why}`, ...again),
    cell("Prompt held", "held", ...held(decision)),
    cell("TTFT", "num", parts.ttft),
    cell("Took", "num", parts.took),
    cell("Status", "num", parts.status),
  );
  return { row, parts };
}

function held({ prompt, cached }) {
  if (!prompt) return [NONE];
  const fill = h("span", { class: "kv" });
  fill.style.setProperty("width", `${Math.round((100 * cached) / prompt)}%`);
  return [h("span", { class: "bar", "aria-hidden": "true" }, fill), h("span", {}, `${count(cached)} of ${count(prompt)}`)];
}

function update({ row, parts }, decision) {
  const runs = decision.status === undefined;
  row.classList.toggle("runs", runs);
  const expects = runs && decision.ttft_ms === undefined && decision.wait_ms > 0;
  parts.ttft.classList.toggle("soft", expects);
  parts.ttft.title = expects ? "as routing expects it" : "";
  if (decision.stream) setText(parts.ttft, expects ? `≈ ${duration(decision.wait_ms)}` : duration(decision.ttft_ms));
  else setText(parts.ttft, NONE);
  setText(parts.took, runs ? "" : duration(decision.ms));
  const bad = !runs && decision.status !== 499 && (decision.status === 0 || decision.status >= 400);
  parts.status.classList.toggle("bad", bad);
  setText(parts.status, runs ? "running" : { 0: "retried", 499: "client left" }[decision.status] ?? String(decision.status));
}

function drawReasons(points) {
  const totals = {};
  for (const point of points) {
    for (const [reason, number] of Object.entries(point.reasons)) totals[reason] = (totals[reason] ?? 0) + number;
  }
  const all = Object.values(totals).reduce((sum, number) => sum + number, 0);
  const box = byId("reasons");
  box.hidden = all === 0;
  if (!all) return;
  const ordered = Object.entries(totals).sort((a, b) => b[1] - a[1]);
  const bar = h("div", { class: "stack", "aria-hidden": "true" });
  const words = [];
  for (const [reason, number] of ordered) {
    const part = h("span", { "data-reason": reason });
    part.style.setProperty("width", `${(100 * number) / all}%`);
    bar.append(part);
    words.push(h("span", { class: "word" }, h("i", { "data-reason": reason }), `${reason.replaceAll("_", " ")} ${Math.round((100 * number) / all)}%`));
  }
  box.replaceChildren(bar, h("p", {}, ...words, h("span", { class: "word soft" }, `of ${count(all)} choices in the last minute`)));
}
