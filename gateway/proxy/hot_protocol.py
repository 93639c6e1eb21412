"""The accelerated data path: generation requests are answered inside uvicorn's HTTP protocol, bytes in, bytes out.

Only the plain case is taken: a POST to a generation endpoint, not pipelined, without Expect.
Everything else goes uvicorn's way to the ASGI callable. Relies on how uvicorn 0.54's HttpToolsProtocol uses its
`cycle`; `accelerate` checks that before it is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from common.errors import HttpFault
from gateway.admission.keys import Access, Keyring
from gateway.proxy.bounded_protocol import BoundedProtocol, Refused
from gateway.proxy.downstream import respond
from gateway.proxy.endpoints import HOT_PATHS, head_of, inbound_of, refusal, request_id_of, too_large
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarder import Forwarder
from gateway.proxy.http1 import Headers, RequestHead, ResponseHead
from gateway.proxy.known_heads import KnownHeads
from gateway.proxy.lean_flow import LeanFlowControl
from gateway.proxy.outbox import Outbox
from gateway.routing.extract import BodyFault

_LOG = logging.getLogger("gateway")
_HOT_PATHS = frozenset(path.encode() for path in HOT_PATHS)


_NO_PIPELINE: Any = ()  # until uvicorn might append to it; an empty deque takes 0.8 KiB


class _NoEvent:
    """uvicorn sets `cycle.message_event` to wake an ASGI task; a hot request has none."""

    def set(self) -> None:
        pass


_NO_EVENT = _NoEvent()


class HotRequest:
    """One request: collects the body, then is the Downstream of its exchange.

    Stands where uvicorn keeps its RequestResponseCycle, with the attributes uvicorn reads there.
    """

    __slots__ = (
        "_body_bytes",
        "_chunked",
        "_fault",
        "_head",
        "_may_chunk",
        "_out",
        "_pieces",
        "_protocol",
        "_request_id",
        "disconnected",
        "exchange",
        "keep_alive",
        "message_event",
        "response_complete",
    )

    def __init__(self, protocol: HotProtocol, head: RequestHead, keep_alive: bool, *, may_chunk: bool = True) -> None:
        self._may_chunk = may_chunk  # not for HTTP/1.0: there the end of the connection is the body's
        self._protocol = protocol
        self._head = head
        self._request_id = request_id_of(head)
        keyring = protocol.keyring
        self._fault = keyring.fault(Access.CLIENT, head.headers) if keyring is not None else None
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._out: list[bytes] = []
        self._chunked = False
        self.exchange: Exchange | None = None
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NO_EVENT

    # --- the request ------------------------------------------------------------------------------------------------

    def add_body(self, piece: bytes) -> None:
        """Keep a piece of the body. What is over the limit is read and dropped, up to as much again; likewise from a
        caller who may not call this."""
        self._body_bytes += len(piece)
        limit = self._protocol.max_body_bytes
        if self._body_bytes <= limit:
            if self._fault is None:
                self._pieces.append(piece)
            return
        self._pieces.clear()
        if self._body_bytes > 2 * limit and not self.response_complete:
            self.keep_alive = False
            self._refuse(413, too_large(limit))

    def body_complete(self) -> None:
        """All pieces are there."""
        if self.response_complete:
            return
        if self._body_bytes > self._protocol.max_body_bytes:
            self._refuse(413, too_large(self._protocol.max_body_bytes))
            return
        pieces, self._pieces = self._pieces, []
        self.start_exchange(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def start_exchange(self, body: bytes) -> None:
        """The request is whole, and not too large."""
        if self._fault is not None:
            self._refuse(self._fault.status, self._fault.message, self._fault.code)
            return
        try:
            inbound = inbound_of(self._head, body, self._request_id)
        except BodyFault as fault:
            self._refuse(400, str(fault))
            return
        forwarder = self._protocol.forwarder
        self.exchange = exchange = forwarder.make_exchange(forwarder, inbound, self)
        try:
            exchange.start()
        except Exception:  # the parser that called us would take it for the client's fault
            _LOG.exception("a request could not begin")
            if not exchange.done:
                exchange.turn_away(
                    HttpFault(500, "The gateway could not begin the request.", code="internal_error"), None
                )

    def _refuse(self, status: int, message: str, code: str | None = None) -> None:
        self._protocol.forwarder.refused(self._head.path, status)
        headers, body = refusal(status, message, self._request_id, code, self._head.path)
        respond(self, status, headers, body)

    def client_left(self) -> None:
        """The connection is gone."""
        self.response_complete = True
        exchange, self.exchange = self.exchange, None
        if exchange is not None and not exchange.done:
            exchange.cancel()

    # --- Downstream -------------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> None:
        self._begin(STATUS_LINE[status], headers)

    def start_relay(self, head: ResponseHead, extra: Headers) -> None:
        lines = STATUS_LINE[head.status] + head.lines
        if head.length is not None:
            lines += b"content-length: %b\r\n" % head.length
        elif not head.bodiless and self._may_chunk:
            self._chunked = True
            lines += b"transfer-encoding: chunked\r\n"
        self._begin(lines, extra)

    def _begin(self, lines: bytes, headers: Headers) -> None:
        out = [lines]
        for name, value in headers:
            if name == b"connection":
                self.keep_alive = False
            else:
                out += (name, b": ", value, b"\r\n")
        out.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._out = out

    @property
    def relay(self) -> Callable[[bytes], None] | None:
        protocol = self._protocol
        return partial(protocol.outbox.write, protocol.transport) if self._chunked else None

    def data(self, payload: bytes, framed: bytes | None) -> None:
        if not self._chunked:
            self._out.append(payload)
        elif framed is not None:
            self._out.append(framed)
        else:
            self._out += (b"%x\r\n" % len(payload), payload, b"\r\n")

    def flush(self) -> None:
        out, self._out = self._out, []
        if out:
            self._protocol.outbox.write(self._protocol.transport, out[0] if len(out) == 1 else b"".join(out))

    def end(self) -> None:
        if self._chunked:
            self._out.append(b"0\r\n\r\n")
        self.flush()
        self.response_complete = True
        self.exchange = None  # no cycles: the collector looks rarely
        self._protocol.hot_request_over(self)

    def abort(self) -> None:
        self.flush()
        self.response_complete = True
        self.exchange = None
        self._protocol.close()


class HotProtocol(BoundedProtocol):
    """One client connection. The class variables are set by `accelerate` on a subclass."""

    forwarder: ClassVar[Forwarder]
    known_heads: ClassVar[KnownHeads]
    outbox: ClassVar[Outbox]
    max_body_bytes: ClassVar[int]
    keyring: ClassVar[Keyring | None]  # None: clients need no key
    browsers: ClassVar[bool]  # some web pages may call us: their requests go the usual way

    __slots__ = ("_first_read", "_hot", "_idle_since_s", "_resting")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = _NO_PIPELINE
        self._hot: HotRequest | None = None  # the request that is being read or answered
        self._resting = True  # between two requests, and the parser has seen nothing of the next
        self._first_read = b""  # what the parser was given first after a rest, until it has a head
        self._idle_since_s: float | None = None  # only while no request has begun and uvicorn keeps no timer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = LeanFlowControl(transport)

    # --- parser callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._idle_since_s = None
        self.begin_reading()
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        first_read, self._first_read = self._first_read, b""
        self.head_complete()
        path, _, query = self.url.partition(b"?")
        parser = self.parser
        if (
            path in _HOT_PATHS
            and (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self.expect_100_continue
            and parser.get_method() == b"POST"
            and not (self.browsers and any(name == b"origin" for name, _ in self.headers))
        ):
            self._bound_body()
            head = head_of("POST", path.decode(), query, self.headers)
            is_current = parser.get_http_version() == "1.1"
            keep_alive = is_current and parser.should_keep_alive()
            if first_read and keep_alive:
                self.known_heads.learn(first_read, head)
            self._hot = HotRequest(self, head, keep_alive, may_chunk=is_current)
            self.cycle = self._hot  # type: ignore[assignment]
        else:
            self._take_the_usual_way()

    def _bound_body(self) -> None:
        """Refuse at once what says that it will be far too large. Raises Refused."""
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if int(length) > 2 * self.max_body_bytes:
            self.refuse(413, too_large(self.max_body_bytes))
            raise Refused

    def _take_the_usual_way(self) -> None:
        """Give uvicorn what its own on_message_begin would have prepared."""
        if self.pipeline is _NO_PIPELINE:
            self.pipeline = deque()
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers += headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if cycle is self._hot and cycle is not None:
            self._body_bytes_read += len(body)
            if not cycle.response_complete:
                cycle.add_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        cycle: Any = self.cycle
        if cycle is self._hot and cycle is not None:
            cycle.body_complete()
        else:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._resting:
            self._resting = self._silent = False
            found = self.known_heads.find(data)
            if found is not None and len(data) <= self.max_body_bytes:
                self._idle_since_s = None
                self._hot = hot = HotRequest(self, found[0], True)
                self.cycle = hot  # type: ignore[assignment]
                hot.start_exchange(data[found[1] :])
                return
            self._first_read = data
        super().data_received(data)
        self._first_read = b""

    # --- connection -------------------------------------------------------------------------------------------------

    def hot_request_over(self, request: HotRequest) -> None:
        """The answer is out: next request, or wait for one."""
        self._hot = None
        if request.keep_alive and not self.pipeline and not self.flow.read_paused:
            # uvicorn would set a timer here and cancel it with the next request; `close_if_idle` costs less.
            self.server_state.total_requests += 1
            self._resting = not self._in_request
            self._idle_since_s = self.forwarder.clock.now_s()
            return
        if not request.keep_alive:
            self.close()
        self.on_response_complete()

    def close(self) -> None:
        """Close the connection behind what it was given to send."""
        self.outbox.flush()
        self.transport.close()

    def refuse(self, status: int, message: str) -> None:
        self.outbox.flush()
        super().refuse(status, message)

    def close_if_idle(self, now_s: float, limit_s: float) -> None:
        """Close a connection that has waited too long for its next request."""
        if self._hot is None and self._idle_since_s is not None and now_s - self._idle_since_s > limit_s:
            self.timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        hot, self._hot = self._hot, None
        if hot is not None:
            hot.client_left()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # it holds on to us

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._hot is not None and self._hot.exchange is not None:
            self._hot.exchange.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._hot is not None and self._hot.exchange is not None:
            self._hot.exchange.resume()
