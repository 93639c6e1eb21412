// A replica's details, and the two things that change the fleet: drain and flush. Both ask before they act.

import { key, request } from "./api.js";
import { sparkline } from "./charts.js";
import { byId, count, h, NONE, percent, setText } from "./format.js";
import { stateOf, STATES } from "./state.js";

let shown = null; // URL of the replica whose details are open
let current = null; // the latest state

export function setUpDialogs() {
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }
  byId("replica").addEventListener("close", () => (shown = null));
  byId("drain").addEventListener("click", drain);
  byId("flush").addEventListener("click", flush);
  byId("confirm-key").addEventListener("submit", (event) => {
    event.preventDefault();
    byId("confirm-go").click();
  });
}

export function openReplica(url) {
  shown = url;
  drawReplica(current);
  if (shown) byId("replica").showModal();
}

export function drawReplica(state) {
  current = state;
  if (shown === null) return;
  const row = state.workers.get(shown);
  if (!row) {
    byId("replica").close();
    return;
  }
  const name = stateOf(row);
  setText(byId("replica-name"), row.name);
  byId("drain").disabled = row.state === "draining";
  const fact = (label, value) => [h("dt", {}, label), h("dd", {}, value)];
  const trail = state.trails.get(row.url) ?? [];
  const loads = trail.map((one) => one.load);
  const mark = h("span", { class: "state" });
  const stateLine = h("p", { class: "state-line" }, mark, `${name}: ${row.note || STATES[name]}`);
  stateLine.dataset.state = name;
  byId("replica-body").replaceChildren(
    stateLine,
    h("div", { class: "sparks" },
      h("figure", {}, h("figcaption", {}, "in flight"), sparkline(loads, Math.max(4, ...loads), `${row.in_flight} in flight now`)),
      h("figure", {}, h("figcaption", {}, "KV pool"), sparkline(trail.map((one) => one.usage), 1, `${percent(row.usage)} of the KV pool now`))),
    h("dl", { class: "facts-list" },
      ...fact("Address", row.url),
      ...fact("Model", row.model || NONE),
      ...fact("In flight from here", count(row.in_flight)),
      ...fact("Running there", count(row.running)),
      ...fact("Waiting there", count(row.waiting)),
      ...fact("KV pool", row.pool_tokens ? `${percent(row.usage)} of ${count(row.pool_tokens)} tokens` : percent(row.usage)),
      ...fact("Prefix hit rate", percent(row.hit_rate)),
      ...fact("Generating", row.tokens_per_s === null ? NONE : `${count(row.tokens_per_s)} tok/s`),
      ...fact("Circuit breaker", row.breaker.replace("_", "-"))),
  );
}

function drain() {
  const row = current.workers.get(shown);
  confirm({
    title: `Drain ${row.name}?`,
    text: "It gets no new request. Those it has may finish; then the gateway forgets it.",
    verb: "Drain",
    act: (as) => request(`workers/${encodeURIComponent(row.name)}/drain`, { method: "POST", as }),
    done: () => {
      byId("replica").close();
      toast(`${row.name} drains.`);
    },
  });
}

function flush() {
  confirm({
    title: "Flush all prefix caches?",
    text: "Every replica forgets its prefixes, so the next prompts are computed in full. A replica that is busy refuses.",
    verb: "Flush",
    act: (as) => request("flush_cache", { method: "POST", as }),
    done: () => toast("All prefix caches are empty."),
  });
}

// Asks, acts, and asks for the admin key where it is needed.
function confirm({ title, text, verb, act, done }) {
  const dialog = byId("confirm");
  const go = byId("confirm-go");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-fault"), "");
  setText(go, verb);
  byId("confirm-key").hidden = true;
  byId("admin-input").value = "";
  go.onclick = async () => {
    go.disabled = true;
    const entered = byId("admin-input").value.trim();
    try {
      await act(entered || undefined);
      if (entered) key.set(entered);
      dialog.close();
      done();
    } catch (error) {
      const locked = error.status === 401 || error.status === 403;
      const fault = entered ? "That is not the admin key." : "This needs the admin key.";
      setText(byId("confirm-fault"), locked ? fault : error.message);
      if (locked) {
        byId("confirm-key").hidden = false;
        byId("admin-input").focus();
      }
    } finally {
      go.disabled = false;
    }
  };
  dialog.showModal();
}

let toastTimer;

export function toast(text) {
  const box = byId("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (box.hidden = true), 5000);
}
