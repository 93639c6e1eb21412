"""One worker's load reports as it pushes them, which is sooner than asking for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

from common.clock import Clock
from common.kv_events import LOAD_TOPIC
from gateway.fleet.health import load_of
from gateway.fleet.worker import LoadReport
from gateway.kv_events.stream import connected

_LOG = logging.getLogger("gateway.kv_events")
_QUEUE = 8  # reports that wait here: only the newest counts


async def follow_load(
    context: zmq.asyncio.Context, endpoint: str, clock: Clock, report: Callable[[LoadReport], None]
) -> None:
    """Pass on what the worker pushes, for ever. The socket connects again by itself."""
    with connected(context.socket(zmq.SUB), endpoint, _QUEUE) as socket:
        socket.subscribe(LOAD_TOPIC)
        while True:
            frames = await socket.recv_multipart()
            try:
                report(load_of(msgspec.msgpack.decode(frames[-1]), clock.now_s()))
            except msgspec.DecodeError as error:
                _LOG.warning("a load report from %s cannot be read: %s", endpoint, error)
            await asyncio.sleep(0)
