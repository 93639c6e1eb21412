"""One worker's event stream, followed: a snapshot first, then every batch in order; what was missed is asked for again.

A connection that breaks, or numbers that start over, mean that the worker may be another one: nothing is known of it
until the next snapshot. Workers without snapshots are asked for all batches they still have; without a replay socket
what came before is never learnt, and a gap starts anew from nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from common.kv_events import END_OF_REPLAY, SEQUENCE_BYTES, SNAPSHOT, EventBatch, decode, sequence_frame, sequence_of
from gateway.kv_events.endpoints import Endpoints
from gateway.kv_events.exact_index import ExactIndex

_LOG = logging.getLogger("gateway.kv_events")

_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 5.0
_ANSWER_TIMEOUT_S = 5.0  # between two messages of a replay
_BATCHES_PER_TURN = 16  # that are taken before other tasks get their turn
_QUEUE = 100_000  # messages that wait here; what is more is dropped, and noticed as a gap
_MAX_MESSAGE_BYTES = 64 * 2**20


class StreamLost(Exception):
    """The stream cannot be followed just now."""


class _NoRoom(Exception):
    """The index does not take this life any more."""


class EventStream:
    """Keeps one life's part of the index. `counts`: resyncs, gaps, lost streams, faulty batches, by those names."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        name: str,
        life: int,
        endpoints: Endpoints,
        index: ExactIndex,
        counts: Counter[str],
    ) -> None:
        self._context = context
        self._name = name
        self._life = life
        self._endpoints = endpoints
        self._index = index
        self._counts = counts
        self._last: int | None = None  # number of the last batch in the index
        self._flows = False  # batches have come since the last snapshot

    async def run(self) -> None:
        """Follow until cancelled, or until the index has no room."""
        backoff_s, has_room = _FIRST_BACKOFF_S, True
        while has_room:
            try:
                async with asyncio.TaskGroup() as tasks, self._connected() as (events, monitor):
                    tasks.create_task(_watch(monitor))
                    await self._resync()
                    backoff_s = _FIRST_BACKOFF_S
                    await self._take(events)
            except* _NoRoom:
                _LOG.warning("worker %s: too many blocks for --exact-index-bytes; its cache is guessed", self._name)
                has_room = False
            except* StreamLost as lost:
                self._index.end(self._life)
                self._counts["lost"] += 1
                _LOG.info("worker %s: event stream: %s", self._name, lost.exceptions[0])
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _take(self, events: zmq.asyncio.Socket) -> None:
        """Take batches as they come."""
        taken = 0
        while True:
            frames = await events.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
                self._counts["faulty"] += 1
                continue
            await self._follow(sequence_of(frames[1]), frames[2])
            taken += 1
            if taken % _BATCHES_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _follow(self, number: int, payload: bytes) -> None:
        last = self._last
        if last is not None and number <= last:
            if self._flows:
                raise StreamLost("its numbers start over")
            return  # the snapshot has it
        if last is not None and number > last + 1:
            self._counts["gaps"] += 1
            await self._fill(last + 1)
            if self._last is not None and number <= self._last:
                return
            if self._last is not None and number > self._last + 1:
                raise StreamLost("it skips numbers")
        self._flows = True
        self._apply(number, payload)

    async def _resync(self) -> None:
        """Learn everything anew."""
        self._counts["resyncs"] += 1
        self._last, self._flows = None, False
        batches = await self._ask(SNAPSHOT) or await self._ask(sequence_frame(0))
        self._index.begin(self._life, self._endpoints.block_size, self._endpoints.shared_tokens)
        for position, (number, payload) in enumerate(batches):
            self._apply(number, payload)
            if position % _BATCHES_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _fill(self, start: int) -> None:
        """Get what was missed from `start` on; if it is not there any more, learn everything anew."""
        batches = await self._ask(sequence_frame(start))
        if not batches or batches[0][0] != start:
            await self._resync()
            return
        self._flows = False  # some of these will come again
        for number, payload in batches:
            self._apply(number, payload)

    async def _ask(self, asked: bytes) -> list[tuple[int, bytes]]:
        """Batches with their numbers, from the replay socket; none without one. Raises StreamLost."""
        if not self._endpoints.replay:
            return []
        batches: list[tuple[int, bytes]] = []
        with connected(self._context.socket(zmq.DEALER), self._endpoints.replay) as socket:
            await socket.send_multipart((b"", asked))
            while True:
                try:
                    async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    raise StreamLost(f"no answer from {self._endpoints.replay}") from None
                if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
                    raise StreamLost("its replay socket answers nonsense")
                if frames[1] == END_OF_REPLAY:
                    return batches
                batches.append((sequence_of(frames[1]), frames[2]))

    def _apply(self, number: int, payload: bytes) -> None:
        self._last = number
        try:
            batch: EventBatch = decode(payload)
        except msgspec.DecodeError as error:
            self._counts["faulty"] += 1
            raise StreamLost(f"a batch that cannot be read: {error}") from None
        if not self._index.apply(self._life, batch.events):
            raise _NoRoom

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]:
        """(the subscription, the monitor of its connection)."""
        events = self._context.socket(zmq.SUB)
        monitor = events.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            events.subscribe(self._endpoints.topic)
            with connected(events, self._endpoints.events):
                yield events, monitor
        finally:
            events.close(linger=0)
            monitor.close(linger=0)


async def _watch(monitor: zmq.asyncio.Socket) -> None:
    """Wait for the end of the connection. Raises StreamLost."""
    parse_monitor_message(await monitor.recv_multipart())
    raise StreamLost("the connection ended")


@contextmanager
def connected(socket: zmq.asyncio.Socket, endpoint: str, queue: int = _QUEUE) -> Iterator[zmq.asyncio.Socket]:
    """Connect, and close at the end. `queue`: messages that may wait. Raises StreamLost for an impossible endpoint."""
    socket.set_hwm(queue)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    try:
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise StreamLost(f"cannot connect to {endpoint}: {error.strerror}") from None
        yield socket
    finally:
        socket.close(linger=0)
