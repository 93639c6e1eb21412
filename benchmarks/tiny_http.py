"""HTTP/1.1 for simulated workers: requests of known length, one after the other, at the least cost."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class RequestProtocol(asyncio.Protocol, ABC):
    """Calls `answer` with each request; who derives from it writes to `_transport`."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end].lower()
            if b" http/1.1\r\n" not in head:  # some routers try other protocols first
                self._transport.abort()
                return
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < head_end + 4 + length:
                return
            body = self._buffer[head_end + 4 : head_end + 4 + length]
            self._buffer = self._buffer[head_end + 4 + length :]
            self.answer(head.split(b" ", 2)[1].split(b"?")[0], body)

    @abstractmethod
    def answer(self, path: bytes, body: bytes) -> None:
        """A request has arrived whole; `path` in small letters, without its query."""
