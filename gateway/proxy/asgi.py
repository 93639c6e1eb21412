"""The reference data path: one exchange under any ASGI server. Works on bytes, knows nothing of frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from gateway.proxy.exchange import Exchange
from gateway.proxy.http1 import REQUEST_ID_HEADER, Headers, ResponseHead

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HIGH_WATER_BYTES = 256 * 1024


class BodyTooLarge(Exception):
    """The request body is over the limit."""


class ClientGone(Exception):
    """The client left before its request was whole."""


async def read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive, max_bytes: int) -> bytes:
    """The whole request body. Raises ClientGone; BodyTooLarge after reading and dropping up to as much again, so that
    a client that sends first and reads later sees the refusal."""
    for name, value in headers:
        if name == b"content-length" and int(value) > 2 * max_bytes:
            raise BodyTooLarge
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body") and len(message["body"]) <= max_bytes:
        return bytes(message["body"])
    pieces: list[bytes] = []
    total = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message["body"])
        total += len(pieces[-1])
        if total > max_bytes:
            pieces.clear()
        if total > 2 * max_bytes or (total > max_bytes and not message.get("more_body")):
            raise BodyTooLarge
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await receive()


class AsgiDownstream:
    """Collects an exchange's answer and sends it from the request's own task."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._start: Message | None = None
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._over = False  # no more pieces will come
        self._cut = False  # ... and the answer is not complete
        self._paused = False
        self.exchange: Exchange | None = None

    # --- Downstream -------------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> None:
        self._start = {"type": "http.response.start", "status": status, "headers": headers}

    def start_relay(self, head: ResponseHead, extra: Headers) -> None:
        self.start(head.status, [*(field for field in head.headers if field[0] != REQUEST_ID_HEADER), *extra])

    @property
    def relay(self) -> None:
        """ASGI does its own framing."""

    def data(self, payload: bytes, framed: bytes | None) -> None:
        self._pieces.append(payload)
        self._buffered_bytes += len(payload)
        if self._buffered_bytes > _HIGH_WATER_BYTES and not self._paused and self.exchange is not None:
            self._paused = True
            self.exchange.pause()

    def flush(self) -> None:
        self._ready.set()

    def end(self) -> None:
        self._over = True
        self._ready.set()

    def abort(self) -> None:
        self._over = self._cut = True
        self._ready.set()

    # --- the request's task -----------------------------------------------------------------------------------------

    async def run(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Drive one exchange to its end, or cancel it when the client leaves."""
        self.exchange = exchange
        watcher = asyncio.create_task(self._watch(exchange, receive))
        try:
            exchange.start()
            await self._pump(exchange, send)
        finally:
            watcher.cancel()
            if not exchange.done:
                exchange.cancel()

    async def _watch(self, exchange: Exchange, receive: Receive) -> None:
        """The server tells only here that a client left; it says the same after a regular end."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if not exchange.done:
            exchange.cancel()
            self.abort()

    async def _pump(self, exchange: Exchange, send: Send) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._start is not None:
                start, self._start = self._start, None
                await send(start)
            pieces, over = self._pieces, self._over
            self._pieces, self._buffered_bytes = [], 0
            if self._paused and not over:
                self._paused = False
                exchange.resume()
            complete = over and not self._cut
            if pieces or complete:
                body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                await send({"type": "http.response.body", "body": body, "more_body": not complete})
            if over:
                return  # after a cut without the last message, so that the server drops the connection
