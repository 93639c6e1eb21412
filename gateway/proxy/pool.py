"""The connections to one worker: made, kept while idle, and taken again."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from urllib.parse import urlsplit

from common.clock import Clock
from gateway.proxy.http1 import RequestHead, request_head, with_authorization
from gateway.proxy.outbox import Outbox
from gateway.proxy.upstream import ConnectError, Failure, FailureKind, UpstreamConnection

# Of TCP, so that the kernel notices when a silent worker's machine is gone or has forgotten the connection: after 15 s
# ask, every 5 s, three times.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class ConnectionPool:
    """Connections to one worker. Idle ones are reused last in, first out, so that surplus ones age and go.

    `authorization`: what requests carry in place of what their clients sent; empty: nothing; None: what they sent.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        outbox: Outbox,
        *,
        keep_alive_s: float,
        max_idle: int,
        authorization: bytes | None = None,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._max_idle = max_idle
        self._idle: dict[UpstreamConnection, None] = {}  # open ones, in order of return
        self._all: set[UpstreamConnection] = set()
        self._closed = False
        self.outbox = outbox
        self.host_header = parts.netloc.encode()
        self.authorization = authorization

    def lines(self, lines: bytes) -> bytes:
        """A client's header lines as this worker gets them."""
        return lines if self.authorization is None else with_authorization(lines, self.authorization)

    def head(self, request: RequestHead, body_bytes: int, request_id: bytes) -> bytes:
        """A client's request head as this worker gets it."""
        lines = request.lines if self.authorization is None else self.lines(request.lines)
        return request_head(request.method, request.target, self.host_header, lines, body_bytes, request_id)

    def take(self) -> UpstreamConnection | None:
        """An idle connection that is likely still open, or None."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if self._clock.now_s() - connection.idle_since_s < self._keep_alive_s:
                connection.reused = True
                return connection
            connection.close()
        return None

    async def connect(self, timeout_s: float) -> UpstreamConnection:
        """A fresh connection. Raises ConnectError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            message = f"no connection to the worker within {timeout_s:g} s"
            raise ConnectError(Failure(FailureKind.CONNECT_TIMEOUT, message)) from None
        except OSError as error:
            kind = FailureKind.REFUSED if _refused(error) else FailureKind.UNREACHABLE
            raise ConnectError(Failure(kind, f"cannot connect to the worker: {error.strerror or error}")) from None
        self._all.add(connection)
        sock = transport.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            sock.setsockopt(level, option, value)
        return connection

    def put(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose answer ended cleanly."""
        if self._closed or len(self._idle) >= self._max_idle:
            connection.close()
            return
        connection.idle_since_s = self._clock.now_s()
        connection.resume_reading()  # a paused reader would not notice that the worker closes
        self._idle[connection] = None

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is closed."""
        self._all.discard(connection)
        self._idle.pop(connection, None)

    def close_idle(self) -> None:
        """Drop connections idle for longer than their time."""
        limit_s = self._clock.now_s() - self._keep_alive_s
        for connection in [c for c in self._idle if c.idle_since_s <= limit_s]:
            connection.close()

    def close(self, failure: Failure) -> None:
        """The worker is gone: drop idle connections, fail the requests on the others."""
        self._closed = True
        for connection in list(self._all):
            connection.fail(failure)


def _refused(error: OSError) -> bool:
    """Nothing listens there. asyncio folds the errors of several addresses into one OSError that has only a text."""
    return isinstance(error, ConnectionRefusedError) or (
        error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error)
    )
