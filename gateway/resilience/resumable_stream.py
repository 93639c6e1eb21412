"""The events of a stream that may be continued by another worker: remembers the text, makes two streams look like one.

Pure. Stands in the place of an EventGate; until the stream breaks, what goes out is byte for byte what came in.
"""

from __future__ import annotations

import os
import re
from typing import Any

import orjson

from gateway.proxy.sse import EventGate
from gateway.resilience.continuation import Continuation

DONE = b"data: [DONE]\n\n"
_EVENT_END = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
_KEPT = ("id", "created", "model", "system_fingerprint")  # of the first event, in all that follow
# Of a choice or a delta. Anything else with a value is more than text, and cannot be replayed.
_TEXT_ONLY = frozenset({"index", "delta", "text", "finish_reason", "matched_stop", "stop_reason"})
_DELTA_TEXT_ONLY = frozenset({"role", "content"})


class ResumableStream(EventGate):
    """One client's stream. `tokens_before`: of the text that the present worker was given, set by `resume`."""

    __slots__ = ("_at_end", "_first", "_plain", "_skip", "_text", "_tokens_before", "_whole", "continuation", "resumed")

    def __init__(self, continuation: Continuation) -> None:
        super().__init__()
        self.continuation = continuation
        self.resumed = False
        self._first: dict[str, Any] = {}
        self._text: list[str] = []
        self._plain = True  # so far only text came
        self._at_end = False  # a finish reason has come
        self._whole = False  # [DONE] has come
        self._tokens_before = 0
        self._skip = ""  # whitespace that the client has, and the present worker has not

    @property
    def holds(self) -> bool:
        """Every event is to be seen."""
        return True

    @property
    def resumable(self) -> bool:
        """Whether another worker can take over here."""
        return self._plain and not self._at_end

    @property
    def text(self) -> str:
        """What the client has, as far as another worker can be given it.

        Chat templates may trim a message, so whitespace at its end is left for the worker to say again.
        """
        text = "".join(self._text)
        return text.rstrip() if self.continuation.chat else text

    @property
    def needs_count(self) -> bool:
        """Whether `resume` must know how many tokens `text` is."""
        return self.continuation.wants_usage or self.continuation.max_tokens is not None

    def feed(self, payload: bytes) -> bytes | None:
        whole = super().feed(payload)
        events = _events_of(payload if whole is None else whole)
        if self.resumed:
            return b"".join([self._continued(event) for event in events])
        for event in events:
            self._note(event)
        return whole

    def resume(self, tokens: int) -> bytes | None:
        """The worker is gone, and `text` is `tokens` tokens long: the request for the next one. None: none is left."""
        limit = self.continuation.max_tokens
        if limit is not None and tokens >= limit:
            return None
        text = self.text
        self.rest()
        self.resumed = True
        self._tokens_before = tokens
        self._skip = "".join(self._text)[len(text) :]
        return self.continuation.after(text, tokens)

    def ending(self, *, at_limit: bool = False) -> bytes | None:
        """What completes a stream whose text the client has to its end; None: more is missing than that."""
        if self._whole:
            return b""
        if self.continuation.wants_usage or not self._plain or not (self._at_end or at_limit):
            return None
        return DONE if self._at_end else self._length_event() + DONE

    def _length_event(self) -> bytes:
        last: dict[str, Any] = {"delta": {}} if self.continuation.chat else {"text": ""}
        return _event(self._first | {"choices": [{"index": 0, **last, "finish_reason": "length"}]})

    # --- events -----------------------------------------------------------------------------------------------------

    def _note(self, event: bytes) -> str:
        """Remember an event. Returns its text."""
        fields = self._fields(event)
        if fields is None:
            return ""
        if not self._first:
            self._first = {name: fields[name] for name in (*_KEPT, "object") if name in fields}
        choices = fields.get("choices")
        if choices == [] or (choices is None and "error" not in fields):
            return ""  # usage
        text = _text_of(choices)
        if text is None or not choices:
            self._plain = False
            return ""
        self._at_end = self._at_end or choices[0].get("finish_reason") is not None
        self._text.append(text)
        return text

    def _continued(self, event: bytes) -> bytes:
        """An event of a worker that took over, as if the first one had sent it."""
        skipped = self._skip
        fields = self._fields(event)
        if fields is None:
            return event
        text = self._note(event)
        if not self._plain:
            return event
        if skipped and text:
            common = len(os.path.commonprefix([skipped, text]))
            self._skip = skipped[common:] if common == len(text) else ""
            self._text[-1] = text = text[common:]
        choices = fields.get("choices") or []
        if choices and not text and choices[0].get("finish_reason") is None and not fields.get("usage"):
            return b""  # a role, or nothing at all
        if choices:
            _put_text(choices[0], text)
        if isinstance(fields.get("usage"), dict):
            self._add_up(fields["usage"])
        return _event(fields | {name: value for name, value in self._first.items() if name in _KEPT})

    def _add_up(self, usage: dict[str, Any]) -> None:
        """Make the last worker's usage that of the whole answer."""
        before = self._tokens_before
        usage["prompt_tokens"] = max(usage.get("prompt_tokens", 0) - before, 0)
        usage["completion_tokens"] = usage.get("completion_tokens", 0) + before
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            details["cached_tokens"] = min(details["cached_tokens"], usage["prompt_tokens"])

    def _fields(self, event: bytes) -> dict[str, Any] | None:
        """The object of an event, None if it has none."""
        data = event.strip()
        if data.startswith(b":"):
            return None  # a comment
        if not data.startswith(b"data:"):
            self._plain = self._plain and not data
            return None
        data = data.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self._whole = True
            return None
        try:
            fields = orjson.loads(data)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            self._plain = False
            return None
        return fields


def _events_of(data: bytes) -> list[bytes]:
    """Whole events, each with the blank line that ends it."""
    if b"\r" in data:
        return [event for event in _EVENT_END.split(data) if event]
    *events, rest = data.split(b"\n\n")
    return [event + b"\n\n" for event in events] + ([rest] if rest else [])


def _text_of(choices: Any) -> str | None:
    """The text of an event's only choice, "" if it has none; None if there is more to it than text."""
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    delta = choice.get("delta") or {}
    if _has_more(choice, _TEXT_ONLY) or not isinstance(delta, dict) or _has_more(delta, _DELTA_TEXT_ONLY):
        return None
    text = delta.get("content") or choice.get("text") or ""
    return text if isinstance(text, str) else None


def _has_more(fields: dict[str, Any], known: frozenset[str]) -> bool:
    unknown = fields.keys() - known
    return bool(unknown) and any(fields[name] for name in unknown)


def _put_text(choice: dict[str, Any], text: str) -> None:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        delta.pop("role", None)
        if "content" in delta:
            delta["content"] = text
    elif "text" in choice:
        choice["text"] = text


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"
