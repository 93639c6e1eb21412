"""uvicorn's HTTP protocol with bounds: on connections, on a request's head, and on the time it takes to come.

Time-outs are looked for by a sweep (`check_time`), so that reading a request costs no clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from common.http_upgrade import without_upgrade
from gateway.proxy.endpoints import refusal
from gateway.proxy.http1 import MAX_HEAD_BYTES

_LINGER_S = 10.0  # for a client to take what it was sent before the connection was closed
_LINE_BYTES = 4  # of a header line beside name and value
_MIN_BYTES_PER_S = 16 * 1024  # of a body, once its time-out is over


class Refused(HttpParserError):  # type: ignore[misc]  # httptools tells no types
    """Raised out of a parser's callback: the request was refused, and nothing behind it is to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    """`head_timeout_s`: from a connection's or a request's begin until the head is complete. `body_timeout_s`: until
    the whole request is, and longer by what came of its body at 16 KiB a second."""

    max_connections: int = 16384
    head_timeout_s: float = 15.0
    body_timeout_s: float = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """One client connection. A subclass sets `bounds`, and `on_refusal`, which hears what was refused with which
    status."""

    bounds: ClassVar[HttpBounds] = HttpBounds()
    on_refusal: ClassVar[Callable[[str, int], None] | None] = None

    # Beside the instance's dictionary, which is a compact one only as long as it has at most thirty names.
    __slots__ = (
        "_body_bytes_read",
        "_closing_since_s",
        "_head_bytes",
        "_in_head",
        "_in_request",
        "_read_bytes",
        "_read_since_s",
        "_silent",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent = True  # nothing has come yet
        self._in_request = False  # the parser has seen a request's begin and not its end
        self._in_head = False  # ... and its head is not complete
        self._head_bytes = 0  # of it, in earlier reads
        self._read_bytes = 0  # of this read
        self._body_bytes_read = 0  # of the request that is being read
        self._closing_since_s: float | None = None  # when the sweep first saw that the client must take the rest
        self._read_since_s: float | None = None  # when the sweep first saw that we wait for the rest of a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.max_connections:
            self.refuse(503, "The gateway has as many connections as it may.")

    def on_message_begin(self) -> None:
        self.begin_reading()
        super().on_message_begin()

    def begin_reading(self) -> None:
        """A request's first byte is there."""
        self._in_request, self._in_head, self._head_bytes, self._body_bytes_read = True, True, 0, 0
        self._read_since_s, self._silent = None, False

    def on_headers_complete(self) -> None:
        self.head_complete()
        super().on_headers_complete()

    def head_complete(self) -> None:
        """A request's head is there. Raises Refused if it is too large."""
        self._in_head = False
        if self._head_bytes + self._read_bytes > MAX_HEAD_BYTES:  # with what may have come behind it
            size = len(self.url) + sum(len(name) + len(value) + _LINE_BYTES for name, value in self.headers)
            if size > MAX_HEAD_BYTES:
                self.refuse_head()
                raise Refused

    def on_body(self, body: bytes) -> None:
        self._body_bytes_read += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._read_bytes = len(data)
        super().data_received(data if self._in_request and not self._in_head else without_upgrade(data))
        if self._in_head:
            self.bound_head(len(data))

    def bound_head(self, read_bytes: int) -> None:
        """So much was read, and the head is not complete."""
        self._head_bytes += read_bytes
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.refuse_head()

    def refuse_head(self) -> None:
        """It is too large."""
        self.refuse(431, f"The request head is larger than {MAX_HEAD_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        """The parser gave up; perhaps because of what we have refused already."""
        if not self.transport.is_closing():
            self.refuse(400, msg)

    def check_time(self, now_s: float) -> None:
        """Close the connection if it makes us wait for a request's bytes for too long, or to be closed."""
        if self.transport.is_closing():
            self._closing_since_s = now_s if self._closing_since_s is None else self._closing_since_s
            if now_s - self._closing_since_s > _LINGER_S:
                self.transport.abort()
            return
        if not (self._in_request or self._silent) or self.flow.read_paused:
            return
        if self._read_since_s is None:
            self._read_since_s = now_s
            return
        waited_s = now_s - self._read_since_s
        if self._silent or self._in_head:
            if waited_s > self.bounds.head_timeout_s:
                self._time_out(f"The request head was not complete within {self.bounds.head_timeout_s:g} s.")
        elif waited_s > self.bounds.body_timeout_s + self._body_bytes_read / _MIN_BYTES_PER_S:
            self._time_out("The request body came too slowly.")

    def _time_out(self, message: str) -> None:
        cycle: Any = self.cycle
        is_answered = cycle is not None and not cycle.response_complete
        if self._in_head and is_answered:
            return  # a pipelined request begins while the one before it is answered
        if self._silent or (not self._in_head and (not is_answered or getattr(cycle, "response_started", False))):
            self.transport.close()
        else:
            self.refuse(408, message)

    def refuse(self, status: int, message: str) -> None:
        """Answer and close, whatever else is still to come."""
        on_refusal = type(self).on_refusal
        if on_refusal is not None:
            on_refusal("connection", status)
        headers, body = refusal(status, message, b"-")
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + lines + length + body)
        self.transport.close()


def bounded(bounds: HttpBounds, on_refusal: Callable[[str, int], None]) -> type[BoundedProtocol]:
    """The protocol class for uvicorn."""
    return type("BoundProtocol", (BoundedProtocol,), {"bounds": bounds, "on_refusal": staticmethod(on_refusal)})
