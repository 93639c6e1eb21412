"""What an open client connection takes: thousands are open at once, and their sum is the memory of a burst."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.app import build
from gateway.config import GatewaySettings
from gateway.proxy.accelerate import accelerate
from gateway.proxy.hot_protocol import HotProtocol
from gateway.proxy.lean_flow import LeanFlowControl

_CONNECTIONS = 200
_MOST_BYTES = 2900  # of our side of one: 2,433; 5,415 with an event, a deque and a sparse dictionary


class Line(asyncio.Transport):
    """Takes everything."""

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def app(scope: Any, receive: Any, send: Any) -> None:
    pass


def opened(make: Callable[[], HotProtocol], count: int) -> list[HotProtocol]:
    """Connections whose request has begun."""
    made = [make() for _ in range(count)]
    for one in made:
        one.connection_made(Line())
        one.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: check\r\ncontent-length: 30\r\n\r\n{")
    return made


async def test_an_open_connection_is_small() -> None:
    protocol_class = accelerate(build(GatewaySettings()).forwarder, max_body_bytes=1000)
    assert protocol_class is not None
    config = uvicorn.Config(app, http=protocol_class, log_config=None, lifespan="off", ws="none")
    config.load()
    make = partial(
        protocol_class,
        config=config,
        server_state=ServerState(),
        app_state={},
        _loop=asyncio.get_running_loop(),
    )
    opened(make, 40)  # the names of an instance are settled, and what is kept once is there
    tracemalloc.start()
    try:
        made = opened(make, _CONNECTIONS)
        each_bytes = tracemalloc.get_traced_memory()[0] / len(made)
    finally:
        tracemalloc.stop()
    assert each_bytes < _MOST_BYTES


async def test_who_waits_for_a_client_is_woken() -> None:
    flow: Any = LeanFlowControl(Line())
    await flow.drain()
    flow.pause_writing()
    waiter = asyncio.create_task(flow.drain())
    await asyncio.sleep(0)
    assert not waiter.done()
    flow.resume_writing()
    await asyncio.wait_for(waiter, 1)


async def test_a_wait_that_begins_behind_the_pause_ends_with_it() -> None:
    flow: Any = LeanFlowControl(Line())
    flow.write_paused = True
    waiter = asyncio.create_task(flow.drain())
    await asyncio.sleep(0)
    assert not waiter.done()
    flow.resume_writing()
    await asyncio.wait_for(waiter, 1)
