"""A whole gateway on a real socket in the test's own loop, and a client that sees bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from common.clock import Clock
from common.process import bind_port
from gateway.app import Gateway, build
from gateway.config import GatewaySettings
from gateway.fleet.worker import WorkerStatus
from gateway.proxy.hot_protocol import HotProtocol
from gateway.server import GatewayServer, uvicorn_config
from tests.helpers.fake_worker import MODEL, FakeWorker
from tests.helpers.processes import until

CHAT = "/v1/chat/completions"


def chat_body(text: str = "hi", *, stream: bool = False, model: str = MODEL, **fields: Any) -> bytes:
    """A chat request."""
    message = {"role": "user", "content": text}
    return json.dumps({"model": model, "messages": [message], "stream": stream, **fields}).encode()


@dataclass
class RunningGateway:
    """A gateway that listens."""

    gateway: Gateway
    server: GatewayServer
    port: int
    client: httpx.AsyncClient

    async def chat(self, text: str = "hi", *, stream: bool = False, **headers: str) -> httpx.Response:
        """One chat request, answered whole."""
        return await self.client.post(CHAT, content=chat_body(text, stream=stream), headers=headers)

    async def raw(self) -> RawClient:
        """A connection of one's own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**27)
        return RawClient(reader, writer)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of canopy_gateway_* with these labels, whatever their others; 0 if there is none."""
        families = self.gateway.forwarder.metrics.registry.collect()
        samples = (sample for family in families for sample in family.samples)
        wanted = labels.items()
        return sum(s.value for s in samples if s.name == f"canopy_gateway_{name}" and wanted <= s.labels.items())

    @property
    def inflight(self) -> int:
        """Ledger and live exchanges, which must agree."""
        ledger = sum(worker.load.inflight for worker in self.gateway.registry.snapshot.workers)
        assert ledger == self.gateway.forwarder.inflight
        return ledger


@dataclass
class RawClient:
    """Bytes to and from the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_bytewise(self, data: bytes) -> None:
        for index in range(len(data)):
            await self.send(data[index : index + 1])
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read one response head: status, and headers by lower-case name (one each)."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.split(": ", 1) for line in lines[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), lines
        return int(lines[0].split(" ")[1]), headers

    async def body(self, headers: dict[str, str]) -> bytes:
        """Read one whole body. Raises IncompleteReadError if it is cut."""
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        assert headers["transfer-encoding"] == "chunked"
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"
        return body

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read one whole response."""
        status, headers = await self.head()
        return status, headers, await self.body(headers)

    def close(self) -> None:
        """Leave."""
        self.writer.transport.abort()


def request_bytes(body: bytes, path: str = CHAT, *lines: str) -> bytes:
    """A whole POST."""
    head = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}", *lines]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


@contextlib.asynccontextmanager
async def running_gateway(
    workers: Sequence[FakeWorker | str], *, ready: int | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Start a gateway in front of `workers` (running, or URLs), wait until `ready` of them are (default all)."""
    urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
    values = {"policy": "round_robin", "health_interval_s": 0.2, **settings}
    gateway = build(GatewaySettings(worker_urls=urls, **values), clock=clock)
    sock = bind_port("127.0.0.1", 0)
    port = sock.getsockname()[1]
    config = uvicorn_config(gateway)
    is_fast = isinstance(config.http, type) and issubclass(config.http, HotProtocol)
    assert is_fast == values.get("fast_path", True), "the fast path's self-check failed"
    server = GatewayServer(config, gateway)
    failures: list[BaseException] = []
    async with gateway.running(failures.append):
        # What uvicorn's `serve` does, without its loop that looks ten times a second whether to stop.
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[sock])
        wanted = len(urls) if ready is None else ready
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False)
        try:
            await until(lambda: ready_workers(gateway) == wanted, 5, f"{wanted} workers are ready")
            yield RunningGateway(gateway, server, port, client)
        finally:
            await client.aclose()
            await server.shutdown(sockets=[sock])
    assert not failures


def ready_workers(gateway: Gateway) -> int:
    """How many workers are in service, whatever their standing."""
    return sum(worker.status is WorkerStatus.READY for worker in gateway.registry.snapshot.workers)
