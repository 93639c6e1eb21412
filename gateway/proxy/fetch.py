"""Small requests of the gateway's own to a worker (probes, fan-outs), over the same connections as the data path."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.fleet.health import Unreachable
from gateway.proxy.chunked import payload_of
from gateway.proxy.forwarder import ConnectionPools
from gateway.proxy.http1 import Headers, ResponseHead, forwarded_lines, request_head
from gateway.proxy.upstream import ConnectError, Failure, FailureKind

_MAX_ANSWER_BYTES = 16 * 2**20


class FetchError(Exception):
    """No whole answer came."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


class _Collector:
    """A Sink that makes a future of an answer."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._head: ResponseHead | None = None
        self._body = bytearray()

    def on_head(self, head: ResponseHead) -> None:
        self._head = head

    def on_data(self, payload: bytes, framed: bytes | None) -> None:
        self._body += payload
        if len(self._body) > _MAX_ANSWER_BYTES:
            self.on_fail(Failure(FailureKind.GARBAGE, "the answer is too long"))

    def on_chunk(self, framed: bytes) -> None:
        self.on_data(payload_of(framed), None)

    def on_flush(self) -> None:
        pass

    def on_end(self) -> None:
        assert self._head is not None
        if not self.future.done():
            self.future.set_result(Fetched(self._head.status, self._head.headers, bytes(self._body)))

    def on_fail(self, failure: Failure) -> None:
        if not self.future.done():
            self.future.set_exception(FetchError(failure))


class Fetcher:
    """Fetches from workers by URL."""

    def __init__(self, pools: ConnectionPools) -> None:
        self._pools = pools

    async def fetch(
        self,
        url: str,
        path: str,
        *,
        timeout_s: float,
        method: str = "GET",
        headers: Headers | None = None,
        body: bytes = b"",
    ) -> Fetched:
        """One request. Raises FetchError, always within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fetch(url, path, method, headers or [], body, timeout_s)
        except TimeoutError:
            raise FetchError(Failure(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s")) from None

    async def _fetch(
        self, url: str, path: str, method: str, headers: Headers, body: bytes, timeout_s: float
    ) -> Fetched:
        pool = self._pools.get(url)
        connection = pool.take()
        while True:
            try:
                connection = connection or await pool.connect(timeout_s)
            except ConnectError as error:
                raise FetchError(error.failure) from None
            collector = _Collector()
            lines = pool.lines(forwarded_lines(headers))
            head = request_head(method, path.encode(), pool.host_header, lines, len(body), b"canopy-gateway")
            connection.send(method, head, body, collector)
            try:
                return await collector.future
            except FetchError as error:
                if error.failure.kind is not FailureKind.STALE:
                    raise
                connection = None
            finally:
                if connection is not None and not collector.future.done():
                    connection.close()


class WorkerProbe:
    """The health monitor's seam (gateway.fleet.health.Probe) over a Fetcher."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    async def get(self, url: str, path: str, timeout_s: float) -> Fetched:
        """GET `path`. Raises Unreachable."""
        try:
            return await self._fetcher.fetch(url, path, timeout_s=timeout_s)
        except FetchError as error:
            refused = error.failure.kind is FailureKind.REFUSED
            raise Unreachable(error.failure.message, refused=refused) from None
