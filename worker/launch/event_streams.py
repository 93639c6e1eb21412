"""The streams of one replica: its cache events, and its load as it changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec

from common.kv_events import KvEventsConfig
from worker.config import WorkerSettings
from worker.kv_events.publisher import EventPublisher, LoadPublisher
from worker.kv_events.recorder import block_size_of, events_config
from worker.server.control import load_report
from worker.server.errors import RequestFault
from worker.server.service import Service

_PUSH_INTERVAL_S = 0.05
_IDLE_PUSHES = 20  # intervals between two reports of an idle replica, for those who join


def open_events(settings: WorkerSettings, host: str, page_size: int) -> EventPublisher | None:
    """The publisher of --kv-events-config; None without it, or without a prefix cache. `host`: the IP address that the
    replica listens on. Raises UserError."""
    config = events_config(settings)
    if config is None:
        return None
    return EventPublisher(config, host, block_size_of(page_size, config.block_size), time.time)


def open_load(settings: WorkerSettings, host: str) -> LoadPublisher | None:
    """The publisher of the load where no events are published, if --kv-events-config names a load_endpoint. `host`: as
    above. Raises UserError."""
    if settings.kv_events_config is None:
        return None
    config = KvEventsConfig.of(settings.kv_events_config)
    if config.load_endpoint is None:
        return None
    return LoadPublisher(msgspec.structs.replace(config, publisher="null"), host)


async def push_loads(service: Service, publish: Callable[[object], None]) -> None:
    """Publish the load every 50 ms while anything is live and once after, else every second; for ever."""
    quiet = 0
    while True:
        if service.num_live or quiet % _IDLE_PUSHES == 0:
            with contextlib.suppress(RequestFault):  # it is ending
                publish(await load_report(service))
        quiet = 0 if service.num_live else quiet + 1
        await asyncio.sleep(_PUSH_INTERVAL_S)
