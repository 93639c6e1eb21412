"""Request heads that were parsed before: clients send the same again and again, but for the content-length.

A head is known if the parser accepted the very same bytes with other digits behind content-length. Nothing is parsed
here, so nothing is understood here in another way than there.
"""

from __future__ import annotations

from gateway.proxy.http1 import RequestHead

_MAX_HEADS = 512
_MAX_HEAD_BYTES = 2048
_MAX_DIGITS = 9
_NAMES = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_NAME_BYTES = len(_NAMES[0])


class KnownHeads:
    """Heads of whole requests, by their bytes without the length. When full it starts anew."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def learn(self, data: bytes, head: RequestHead) -> None:
        """`data` begins with a request that the parser took for `head`; the connection stays open after it."""
        if head.given_id:
            return  # likely to be another one each time
        end = data.find(b"\r\n\r\n")
        raw = data[: end + 2]
        if end < 0 or end > _MAX_HEAD_BYTES or not data.startswith(b"POST ") or raw.count(b"\n") != raw.count(b"\r\n"):
            return
        lower = raw.lower()
        if lower.count(b"\ncontent-length") != 1 or b"\ntransfer-encoding" in lower:
            return
        parts = _split(data, end)
        if parts is not None and parts[1].isdigit():
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[parts[0]] = head

    def find(self, data: bytes) -> tuple[RequestHead, int] | None:
        """The head and where the body begins, if `data` is exactly one whole request with a known head."""
        end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES + 4)
        parts = _split(data, end) if end > 0 else None
        if parts is None:
            return None
        key, digits = parts
        head = self._heads.get(key)
        if head is None or not digits.isdigit() or len(digits) > _MAX_DIGITS or end + 4 + int(digits) != len(data):
            return None
        return head, end + 4


def _split(data: bytes, end: int) -> tuple[bytes, bytes] | None:
    """(the head up to `end` without what stands behind content-length, that)."""
    at = data.find(_NAMES[0], 0, end)
    if at < 0:
        at = data.find(_NAMES[1], 0, end)
        if at < 0:
            return None
    start = at + _NAME_BYTES
    eol = data.find(b"\r\n", start)
    return data[:start] + data[eol:end], data[start:eol]
