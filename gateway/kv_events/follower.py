"""Follows the event streams of all workers that have one, as they come and go; one task for each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

import zmq.asyncio

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import NO_LIFE, WorkerView
from gateway.kv_events.endpoints import Endpoints, TokenizerSource
from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.stream import EventStream, StreamLost
from gateway.kv_events.tokenizers import Tokenizers

_LOG = logging.getLogger("gateway.kv_events")


class EventFollower:
    """`given`: endpoints by worker URL, before what a worker tells. `source`: the tokenizer for all models, if given.

    Owns the streams' tasks and their ZMQ context. Everything is on the event loop.
    """

    def __init__(
        self,
        index: ExactIndex,
        tokenizers: Tokenizers,
        given: Mapping[str, Endpoints],
        source: TokenizerSource | None = None,
    ) -> None:
        self._index = index
        self._tokenizers = tokenizers
        self._given = given
        self._source = source
        self._context = zmq.asyncio.Context()
        self._streams: dict[int, tuple[Endpoints, asyncio.Task[None]]] = {}  # by life
        self._tasks: set[asyncio.Task[None]] = set()  # those, and those that are about to end
        self.counts: Counter[str] = Counter()

    @property
    def num_streams(self) -> int:
        """Workers whose streams are followed, or would be if they answered."""
        return len(self._streams)

    def follow(self, snapshot: Snapshot) -> None:
        """Workers came, went, or told more about themselves."""
        wanted: dict[int, tuple[WorkerView, Endpoints]] = {}
        for worker in snapshot.workers:
            endpoints = self._given.get(worker.url) or worker.identity.events
            if endpoints is None or not endpoints.events:
                continue
            if worker.life != NO_LIFE:
                wanted[worker.life] = worker, endpoints
            source = self.source_of(worker)
            if source is not None:
                self._tokenizers.want(source)
        for life in [life for life in self._streams if life not in wanted]:
            self._end(life)
        for life, (worker, endpoints) in wanted.items():
            before = self._streams.get(life)
            if before is not None and before[0] != endpoints:
                self._end(life)
                before = None
            if before is None:
                self._begin(worker, endpoints)

    def source_of(self, worker: WorkerView) -> TokenizerSource | None:
        """The tokenizer of a worker's model."""
        return self._source or worker.identity.tokenizer

    async def close(self) -> None:
        """End all streams."""
        for life in list(self._streams):
            self._end(life)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.term()  # would wait for ever for an open socket
        self._tokenizers.close()

    def _begin(self, worker: WorkerView, endpoints: Endpoints) -> None:
        life = worker.life
        stream = EventStream(self._context, worker.name, life, endpoints, self._index, self.counts)
        task = asyncio.create_task(stream.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._check)
        self._streams[life] = endpoints, task

    def _end(self, life: int) -> None:
        self._streams.pop(life)[1].cancel()
        self._index.end(life)

    def _check(self, task: asyncio.Task[None]) -> None:
        """A stream that breaks for a reason nobody thought of must not be silent, nor take the gateway with it."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.counts["broken"] += 1
        if isinstance(error, StreamLost):
            _LOG.warning("a stream cannot be followed: %s", error)
        else:
            _LOG.error("a stream broke", exc_info=error)
