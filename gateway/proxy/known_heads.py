"""Request heads that were parsed before: clients send the same again and again, but for the content-length.

A head is known if the parser accepted the very same bytes with other digits behind content-length. Nothing is parsed
here, so nothing is understood here in another way than there.
"""

from __future__ import annotations

import msgspec

from gateway.proxy.http1 import RequestHead

_MAX_HEADS = 512
_MAX_HEAD_BYTES = 2048
_MAX_DIGITS = 9
_NAMES = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_NAME_BYTES = len(_NAMES[0])


class _Known(msgspec.Struct, frozen=True, gc=False):
    """One head. `before`: its bytes up to the length, `after`: those behind it, with the blank line."""

    before: bytes
    after: bytes
    head: RequestHead


class KnownHeads:
    """Heads of whole requests, by their bytes without the length. When full it starts anew."""

    def __init__(self) -> None:
        self._heads: dict[bytes, _Known] = {}
        self._latest = _Known(b"\0", b"", RequestHead("", "", b"", b"", [], b"", b"", b"", ""))

    def learn(self, data: bytes, head: RequestHead) -> None:
        """`data` begins with a request that the parser took for `head`; the connection stays open after it."""
        if head.given_id or b"\ntraceparent:" in head.lines or head.lines.startswith(b"traceparent:"):
            return  # likely to be another one each time
        end = data.find(b"\r\n\r\n")
        raw = data[: end + 2]
        if end < 0 or end > _MAX_HEAD_BYTES or not data.startswith(b"POST ") or raw.count(b"\n") != raw.count(b"\r\n"):
            return
        lower = raw.lower()
        if lower.count(b"\ncontent-length") != 1 or b"\ntransfer-encoding" in lower:
            return
        bounds = _bounds(data, end)
        if bounds is not None and data[bounds[0] : bounds[1]].isdigit():
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            before, after = data[: bounds[0]], data[bounds[1] : end + 4]
            self._heads[before + after] = _Known(before, after, head)

    def find(self, data: bytes) -> tuple[RequestHead, int] | None:
        """The head and where the body begins, if `data` is exactly one whole request with a known head."""
        known = self._latest
        start = len(known.before)
        end = data.find(b"\r\n", start) if data.startswith(known.before) else -1
        if end < 0 or not data.startswith(known.after, end):
            found = self._look_up(data)
            if found is None:
                return None
            known, start, end = found
            self._latest = known
        digits, body_start = data[start:end], end + len(known.after)
        if not digits.isdigit() or len(digits) > _MAX_DIGITS or body_start + int(digits) != len(data):
            return None
        return known.head, body_start

    def _look_up(self, data: bytes) -> tuple[_Known, int, int] | None:
        """Which head `data` begins with, and where its length begins and ends."""
        end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES + 4)
        bounds = _bounds(data, end) if end > 0 else None
        if bounds is None:
            return None
        known = self._heads.get(data[: bounds[0]] + data[bounds[1] : end + 4])
        return (known, *bounds) if known is not None else None


def _bounds(data: bytes, end: int) -> tuple[int, int] | None:
    """Where what stands behind content-length begins and ends in a head that ends at `end`."""
    at = data.find(_NAMES[0], 0, end)
    if at < 0:
        at = data.find(_NAMES[1], 0, end)
        if at < 0:
            return None
    start = at + _NAME_BYTES
    return start, data.find(b"\r\n", start)
