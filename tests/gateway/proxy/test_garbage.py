"""What a request leaves behind: nothing that only the cycle collector could free, for it rarely looks."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from gateway.proxy.exchange import Exchange
from gateway.proxy.hot_protocol import HotProtocol, HotRequest
from gateway.proxy.upstream import UpstreamConnection
from tests.helpers.fake_worker import FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until

KINDS = (Exchange, HotRequest, HotProtocol, UpstreamConnection)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """Objects of the data path, by class."""
    return Counter(type(item).__name__ for item in gc.get_objects() if issubclass(type(item), KINDS))


async def script(request: Received, reply: Reply) -> None:
    kind = request.json["messages"][0]["content"]
    await reply.stream_head()
    await reply.chunk(event(kind))
    if kind == "cut":
        reply.cut()
    elif kind == "endless":
        await asyncio.sleep(60)
    else:
        await reply.last_chunk()


async def one(gateway: RunningGateway, kind: str) -> None:
    """A connection with two requests."""
    client = await gateway.raw()
    await client.send(request_bytes(chat_body("whole", stream=True)))
    assert (await client.response())[0] == 200
    await client.send(request_bytes(chat_body(kind, stream=True) if kind != "bad" else b"{"))
    if kind == "endless":
        await client.reader.readuntil(event(kind))
    else:
        await client.response()
    client.close()


@pytest.mark.parametrize("kind", ["whole", "cut", "endless", "bad"])
async def test_connections_are_freed_at_once(no_collector: None, kind: str) -> None:
    before = alive()
    async with FakeWorker(script) as worker, running_gateway([worker], upstream_max_idle=0) as gateway:
        await asyncio.gather(*(one(gateway, kind) for _ in range(5)))
        await until(lambda: not alive() - before, 5, "nothing is left")
