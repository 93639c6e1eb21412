// Requests to the gateway, with the key that this tab knows. The key is kept in sessionStorage and nowhere else.

const SLOT = "canopy.key";

export const key = {
  get: () => sessionStorage.getItem(SLOT) ?? "",
  set: (value) => sessionStorage.setItem(SLOT, value),
  forget: () => sessionStorage.removeItem(SLOT),
};

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The answer to a request; throws ApiError for a status from 400. `body` goes as JSON. `as`: a key for this once.
export async function request(path, { method = "GET", body, signal, as } = {}) {
  const headers = {};
  const used = as ?? key.get();
  if (used) headers.authorization = `Bearer ${used}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, signal, cache: "no-store", body: body && JSON.stringify(body) });
  if (answer.ok) return answer;
  const text = await answer.text();
  let fault = {};
  try {
    fault = JSON.parse(text).error ?? {};
  } catch {
    // not of ours: the status must do
  }
  throw new ApiError(answer.status, fault.message ?? `The gateway answered ${answer.status}.`, fault.code);
}

// Server-sent events of an answer as {name, data}.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value.replaceAll("\r\n", "\n");
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const event = parse(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const event = { name: "message", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event.name = line.slice(6).trim();
    else if (line.startsWith("data:")) event.data += line.slice(5).trimStart();
  }
  return event;
}
