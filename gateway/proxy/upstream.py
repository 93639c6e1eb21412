"""One keep-alive HTTP/1.1 connection to a worker: a protocol that feeds a narrow sink.

Whatever happens to a request, its sink hears either `on_end` or `on_fail`, once, unless it called `close` itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, cast

from gateway.proxy.chunked import ChunkedDecoder, is_whole_chunk
from gateway.proxy.http1 import MAX_HEAD_BYTES, Framing, ProtocolFault, ResponseHead, parse_head

if TYPE_CHECKING:
    from gateway.proxy.pool import ConnectionPool

_MAX_JOINED_BYTES = 65536  # a copy costs less than a second piece, up to here


class FailureKind(Enum):
    """What went wrong between us and a worker."""

    REFUSED = "refused"  # nothing listens there: the process is dead
    UNREACHABLE = "unreachable"  # no connection for another reason
    CONNECT_TIMEOUT = "connect_timeout"
    STALE = "stale"  # a reused connection was closed before any byte of the answer
    CLOSED = "closed"  # a fresh connection was closed before any byte of the answer
    CUT = "cut"  # closed inside the answer
    GARBAGE = "garbage"  # not HTTP/1.1
    TIMEOUT = "timeout"  # first byte, idle or total
    HUNG = "hung"  # its probes fail, and nothing comes from it for anybody


_ANSWERS = {
    FailureKind.REFUSED: (503, "worker_unreachable"),
    FailureKind.UNREACHABLE: (503, "worker_unreachable"),
    FailureKind.CONNECT_TIMEOUT: (504, "connect_timeout"),
    FailureKind.TIMEOUT: (504, "upstream_timeout"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request to a worker failed, with a sentence for people."""

    kind: FailureKind
    message: str

    @property
    def answer(self) -> tuple[int, str]:
        """Status and code of the error that the client gets, if nothing better can be had."""
        return _ANSWERS.get(self.kind, (502, "worker_failed"))


class ConnectError(Exception):
    """No connection could be made."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Sink(Protocol):
    """Who hears one answer. Calls come in the order head, data*, end; fail may come instead of any of them."""

    def on_head(self, head: ResponseHead) -> None:
        """The final head (1xx heads are skipped)."""
        ...

    def on_data(self, payload: bytes, framed: bytes | None) -> None:
        """Body bytes. `framed`: the same as whole chunks of chunked coding, if they came that way."""
        ...

    def on_chunk(self, framed: bytes) -> None:
        """One read that was exactly one plain chunk, given as it came. No `on_flush` follows."""
        ...

    def on_flush(self) -> None:
        """All that came in one read was delivered."""
        ...

    def on_end(self) -> None:
        """The body is complete. Comes instead of the last `on_flush`."""
        ...

    def on_fail(self, failure: Failure) -> None:
        """The answer will not come, or not to its end."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection, one request at a time. Made by a ConnectionPool, which gets it back after a clean answer."""

    __slots__ = (
        "_at_chunk",
        "_buffer",
        "_decoder",
        "_got_bytes",
        "_head",
        "_method",
        "_paused",
        "_pool",
        "_remaining_bytes",
        "_sink",
        "_transport",
        "idle_since_s",
        "reused",
    )

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._method = "POST"
        self._head: ResponseHead | None = None
        self._decoder: ChunkedDecoder | None = None
        self._at_chunk = False  # inside a chunked body, and the next byte is a chunk's first
        self._remaining_bytes = 0
        self._buffer = b""
        self._got_bytes = False
        self._paused = False
        self.reused = False
        self.idle_since_s = 0.0

    # --- for the sender ---------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Open, as far as we know."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, method: str, head: bytes, body: bytes, sink: Sink) -> None:
        """Write one request and deliver its answer to `sink`."""
        transport = self._transport
        assert self._sink is None and transport is not None
        self._method = method
        self._sink = sink
        self._head = None
        self._at_chunk = self._got_bytes = False
        write = self._pool.outbox.write
        if len(body) <= _MAX_JOINED_BYTES:
            write(transport, head + body)
        else:
            write(transport, head)
            write(transport, body)

    def pause_reading(self) -> None:
        """Back-pressure: read no more until resumed."""
        if self.usable and not self._paused:
            self._paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused and self.usable:
            self._paused = False
            cast(asyncio.Transport, self._transport).resume_reading()

    def close(self) -> None:
        """Drop the connection now; its sink hears nothing more."""
        self._sink = None
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def fail(self, failure: Failure) -> None:
        """Drop the connection and tell the sink why."""
        sink = self._sink
        self.close()
        if sink is not None:
            sink.on_fail(failure)

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        if self._sink is not None:
            self._lost()

    def eof_received(self) -> bool:
        if self._sink is None:
            self.close()
        else:
            self._lost()
        return False

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self.close()  # bytes nobody asked for: what follows could be taken for an answer
            return
        if self._at_chunk and is_whole_chunk(data):
            sink.on_chunk(data)
            return
        self._got_bytes = True
        try:
            if self._head is None:
                self._read_head(data)
            else:
                self._read_body(data)
        except ProtocolFault as fault:
            self.fail(Failure(FailureKind.GARBAGE, f"the worker's answer is not HTTP: {fault}"))
            return
        if self._sink is sink:
            sink.on_flush()

    def _lost(self) -> None:
        head = self._head
        if head is not None and head.framing is Framing.CLOSE:
            self._finish(rest=b"")
        elif self._got_bytes:
            self.fail(Failure(FailureKind.CUT, "the worker closed the connection inside its answer"))
        elif self.reused:
            self.fail(Failure(FailureKind.STALE, "the kept connection was closed"))
        else:
            self.fail(Failure(FailureKind.CLOSED, "the worker closed the connection without an answer"))

    def _read_head(self, data: bytes) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise ProtocolFault("response head too long")
                self._buffer = data
                return
            head, data = parse_head(data[:end], self._method), data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise ProtocolFault("unasked switch of protocols")
        self._head = head
        self._remaining_bytes = head.length_bytes
        self._decoder = ChunkedDecoder() if head.framing is Framing.CHUNKED else None
        sink = self._sink
        assert sink is not None
        sink.on_head(head)
        if self._sink is not sink:
            return
        if head.framing is Framing.EMPTY:
            self._finish(rest=data)
        elif data:
            self._read_body(data)

    def _read_body(self, data: bytes) -> None:
        sink = self._sink
        assert sink is not None and self._head is not None
        decoder = self._decoder
        if decoder is not None:
            payload, framed = decoder.feed(data)
            self._at_chunk = decoder.at_chunk
            if payload:
                sink.on_data(payload, framed)
            if decoder.done and self._sink is sink:
                self._finish(rest=decoder.rest)
        elif self._head.framing is Framing.CLOSE:
            sink.on_data(data, None)
        else:
            body = data if len(data) <= self._remaining_bytes else data[: self._remaining_bytes]
            rest = data[len(body) :]
            self._remaining_bytes -= len(body)
            sink.on_data(body, None)
            if not self._remaining_bytes and self._sink is sink:
                self._finish(rest)

    def _finish(self, rest: bytes) -> None:
        sink, head = self._sink, self._head
        assert sink is not None and head is not None
        self._sink = None
        if rest or not head.keep_alive:
            self.close()
        else:
            self._pool.put(self)
        sink.on_end()
