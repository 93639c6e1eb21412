// A chat with the model through /v1/chat/completions, streamed, as any client would.

import { events, request } from "./api.js";
import { byId, duration, h, setText } from "./format.js";

const IDEAS = ["What is a prefix cache?", "Write a haiku about trees.", "Count from one to ten."];

const messages = [];
let running = null; // the AbortController of the answer that streams

export function setUpChat() {
  byId("ideas").append(...IDEAS.map((text) => {
    const button = h("button", { type: "button", class: "chip" }, text);
    button.addEventListener("click", () => send(text));
    return button;
  }));
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send(byId("prompt").value.trim());
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("ask").requestSubmit();
    }
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    byId("log").replaceChildren(byId("chat-empty"));
    byId("chat-empty").hidden = false;
    byId("clear").hidden = true;
    byId("prompt").focus();
  });
}

// The models that there are; a choice stays while its model does.
export function drawModels(state) {
  const names = [...new Set([...state.workers.values()].map((row) => row.model).filter(Boolean))].sort();
  const select = byId("model");
  if (select.dataset.names !== names.join("\n")) {
    const chosen = select.value;
    select.dataset.names = names.join("\n");
    select.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  }
  select.disabled = names.length < 2;
  select.hidden = names.length === 0;
}

async function send(text) {
  if (!text || running) return;
  byId("prompt").value = "";
  byId("chat-empty").hidden = true;
  byId("clear").hidden = false;
  messages.push({ role: "user", content: text });
  say("you", text);
  const bubble = say("model", "");
  const meta = h("p", { class: "meta" }, "waiting for the first token…");
  bubble.after(meta);
  running = new AbortController();
  busy(true);
  const watch = { sent: performance.now(), first: null, pieces: 0, route: "", usage: null };
  let said = "";
  try {
    for await (const piece of answer(watch, running.signal)) {
      said += piece;
      append(bubble, piece);
      meta.textContent = describe(watch);
    }
    setText(byId("chat-status"), `Answer: ${said}`);
  } catch (error) {
    if (error.name !== "AbortError") {
      bubble.after(h("p", { class: "fault", role: "alert" }, error.message));
      if (!said) bubble.remove();
    }
  }
  if (said) messages.push({ role: "assistant", content: said });
  else messages.pop();
  meta.textContent = watch.first === null ? watch.route : describe(watch);
  running = null;
  busy(false);
}

// Pieces of text as they come; keeps times, route and usage in `watch`.
async function* answer(watch, signal) {
  const body = {
    messages,
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: Number(byId("max-tokens").value) || 256,
  };
  if (byId("model").value) body.model = byId("model").value;
  const reply = await request("v1/chat/completions", { method: "POST", body, signal });
  watch.route = routed(reply.headers.get("x-canopy-route"));
  for await (const { data } of events(reply)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) watch.usage = chunk.usage;
    const piece = chunk.choices?.[0]?.delta?.content;
    if (!piece) continue;
    watch.first ??= performance.now();
    watch.last = performance.now();
    watch.pieces += 1;
    yield piece;
  }
}

// "worker=a; reason=prefix; cached=12" as words.
function routed(header) {
  const fields = Object.fromEntries((header ?? "").split("; ").map((field) => field.split("=")));
  return fields.worker ? `${fields.worker} · ${fields.reason.replaceAll("_", " ")}` : "";
}

function describe({ sent, first, last, pieces, route, usage }) {
  const tokens = usage?.completion_tokens ?? pieces;
  const seconds = (last - first) / 1000;
  const parts = [route, `first token ${duration(first - sent)}`, `${tokens} tokens`];
  if (seconds > 0.2 && pieces > 1) parts.push(`${Math.round((tokens - 1) / seconds)} tok/s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
  return parts.filter(Boolean).join(" · ");
}

function say(who, text) {
  const bubble = h("div", { class: `say ${who}` }, h("span", { class: "hidden" }, who === "you" ? "You: " : "Model: "), text);
  byId("log").append(bubble);
  scroll();
  return bubble;
}

function append(bubble, piece) {
  const log = byId("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  bubble.append(piece);
  if (atEnd) scroll();
}

function scroll() {
  byId("log").scrollTop = byId("log").scrollHeight;
}

function busy(is) {
  byId("stop").hidden = !is;
  byId("send").hidden = is;
  byId("log").setAttribute("aria-busy", String(is));
}
