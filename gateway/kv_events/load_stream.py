"""Workers' load reports as they push them, which is sooner than asking for them. In both routing modes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import zmq
import zmq.asyncio

from common.clock import Clock
from common.kv_events import LOAD_TOPIC
from gateway.fleet.health import load_of
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import NO_LIFE, LoadReport, Ours
from gateway.kv_events.endpoints import Endpoints
from gateway.kv_events.stream import StreamLost, connected

_LOG = logging.getLogger("gateway.kv_events")
_QUEUE = 8  # reports that wait here: only the newest counts
_MAX_STREAMS = 64


class LoadStreams:
    """Follows the load of the workers that push it, as they come and go. Everything is on the event loop.

    `given`: endpoints by worker URL, before what a worker tells. Of a large fleet the first ones only: each stream
    brings twenty reports a second. The others' load is asked for with their probes.
    """

    def __init__(self, registry: Registry, clock: Clock, given: Mapping[str, Endpoints]) -> None:
        self._registry = registry
        self._clock = clock
        self._given = given
        self._context: zmq.asyncio.Context | None = None  # made when it is needed: it has a thread
        self._streams: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by worker's URL: endpoint, task
        self._tasks: set[asyncio.Task[None]] = set()  # those, and those that are about to end

    def __len__(self) -> int:
        return len(self._streams)

    def follow(self, snapshot: Snapshot) -> None:
        """Workers came, went, or told more about themselves."""
        wanted: dict[str, str] = {}
        for worker in snapshot.workers:
            endpoints = self._given.get(worker.url) or worker.identity.events
            if endpoints is not None and endpoints.load and worker.life != NO_LIFE and len(wanted) < _MAX_STREAMS:
                wanted[worker.url] = endpoints.load
        for url in [url for url, (endpoint, _) in self._streams.items() if wanted.get(url) != endpoint]:
            self._streams.pop(url)[1].cancel()
        for url, endpoint in wanted.items():
            if url not in self._streams:
                self._streams[url] = endpoint, self._begin(url, endpoint)

    async def close(self) -> None:
        """End all streams."""
        self._streams.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.term()  # would wait for ever for an open socket

    def _begin(self, url: str, endpoint: str) -> asyncio.Task[None]:
        self._context = self._context or zmq.asyncio.Context()
        before = Ours(0, 0)

        def report(told: LoadReport) -> None:
            nonlocal before
            self._registry.report(url, told, before)
            worker = self._registry.snapshot.get(url)
            before = worker.load.ours if worker is not None else before

        task = asyncio.create_task(follow_load(self._context, endpoint, self._clock, report))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_check)
        return task


def _check(task: asyncio.Task[None]) -> None:
    """Without its stream a worker's load is asked for again; but that it broke must not be silent."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, StreamLost):
        _LOG.warning("a worker's load cannot be followed: %s", error)
    else:
        _LOG.error("a worker's load stream broke", exc_info=error)


async def follow_load(
    context: zmq.asyncio.Context, endpoint: str, clock: Clock, report: Callable[[LoadReport], None]
) -> None:
    """Pass on what the worker pushes, for ever. The socket connects again by itself."""
    with connected(context.socket(zmq.SUB), endpoint, _QUEUE) as socket:
        socket.subscribe(LOAD_TOPIC)
        while True:
            frames = await socket.recv_multipart()
            try:
                report(replace(load_of(msgspec.msgpack.decode(frames[-1]), clock.now_s()), pushed=True))
            except msgspec.DecodeError as error:
                _LOG.warning("a load report from %s cannot be read: %s", endpoint, error)
            await asyncio.sleep(0)
