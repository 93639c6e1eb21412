"""Server-sent events as bytes: whole events only go out, so that an error event can follow at any moment."""

from __future__ import annotations

import orjson

from common.errors import ANTHROPIC_PATH, error_body_at

_MAX_HELD_BYTES = 1 << 20
_ENDS = (b"\n\n", b"\r\n\r\n")
# As whole chunks of chunked coding end, too.
FRAMED_EVENT_ENDS = (b"\n\n\r\n", b"\r\n\r\n\r\n")
_LAST_EVENTS = (b"data: [DONE]\n\n", b'data: {"type":"message_stop"}\n\n')
LAST_EVENTS = (*_LAST_EVENTS, *(last + b"\r\n" for last in _LAST_EVENTS))


class EventGate:
    """Lets whole events pass and keeps the start of an unfinished one, unless that grows past a megabyte."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, payload: bytes) -> bytes | None:
        """What may go out now. None: exactly `payload`."""
        if not self._held and payload.endswith(_ENDS):
            return None
        payload = self._held + payload
        cut = max(payload.rfind(end) + len(end) if end in payload else 0 for end in _ENDS)
        if len(payload) - cut > _MAX_HELD_BYTES:
            cut = len(payload)
        self._held = payload[cut:]
        return payload[:cut]

    @property
    def holds(self) -> bool:
        """Whether something is kept back."""
        return bool(self._held)

    def rest(self) -> bytes:
        """What is still held, at a regular end."""
        held, self._held = self._held, b""
        return held


def error_event(status: int, message: str, code: str, path: str = "") -> bytes:
    """The event that ends a broken stream of `path`."""
    name = b"event: error\n" if path.startswith(ANTHROPIC_PATH) else b""
    return name + b"data: " + orjson.dumps(error_body_at(path, status, message, code=code)) + b"\n\n"
