"""What a worker publishes is what the gateway knows, over real sockets: it joins late, misses batches, outlives it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import zmq.asyncio

from common.clock import MonotonicClock
from common.kv_events import SNAPSHOT, KvEventsConfig, chain
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity, LoadReport
from gateway.kv_events.endpoints import Endpoints, told_endpoints
from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.load_stream import LoadStreams, follow_load
from gateway.kv_events.stream import EventStream
from tests.helpers.processes import until
from worker.ipc.messages import CacheChange, CacheCleared, CacheRemoved, CacheStored
from worker.kv_events.publisher import EventPublisher, LoadPublisher
from worker.token_ids import pack_tokens

SIZE = 2
LIFE = 7
WAIT_S = 10.0


def stored(*tokens: int) -> CacheStored:
    """A sequence from its start."""
    packed = pack_tokens(tokens)
    return CacheStored(chain(packed, SIZE), None, packed)


class Worker(EventPublisher):
    """A publisher that can lose messages, or know no snapshots."""

    def __init__(self, config: KvEventsConfig, *, knows_snapshots: bool = True) -> None:
        super().__init__(config, "127.0.0.1", SIZE, time.time)
        self._knows_snapshots = knows_snapshots

    def lose(self, changes: list[CacheChange]) -> None:
        """Publish what no subscriber gets."""
        kept, self._events = self._events, _Nowhere()  # type: ignore[assignment]
        try:
            self.publish(changes)
        finally:
            self._events = kept

    def _asked(self, asked: bytes) -> Iterator[tuple[bytes, bytes]]:
        if asked == SNAPSHOT and not self._knows_snapshots:
            return iter(())
        return super()._asked(asked)


class _Nowhere:
    def send_multipart(self, frames: object) -> None:
        pass


@asynccontextmanager
async def worker(config: KvEventsConfig | None = None, *, knows_snapshots: bool = True) -> AsyncIterator[Worker]:
    running = Worker(config or KvEventsConfig(), knows_snapshots=knows_snapshots)
    task = asyncio.create_task(running.answer_replays())
    try:
        yield running
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        running.close()


class Gateway:
    """One stream and its index."""

    def __init__(self, max_blocks: int = 10_000) -> None:
        self.index = ExactIndex(max_blocks)
        self.counts: Counter[str] = Counter()

    @asynccontextmanager
    async def following(self, endpoints: Endpoints) -> AsyncIterator[asyncio.Task[None]]:
        context = zmq.asyncio.Context()
        stream = EventStream(context, "w", LIFE, endpoints, self.index, self.counts)
        task = asyncio.create_task(stream.run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            context.term()

    def knows(self, *tokens: int) -> int:
        """Blocks of a prompt; -1 while the worker is not followed."""
        if LIFE not in self.index.lives:
            return -1
        return self.index.matched(LIFE, chain(pack_tokens(tokens), SIZE), 0.0)


def endpoints_of(running: Worker) -> Endpoints:
    """As the worker would tell them."""
    endpoints = told_endpoints("http://127.0.0.1:1", msgspec.structs.asdict(running.config))
    assert endpoints is not None
    return endpoints


async def until_live(gateway: Gateway, running: Worker) -> None:
    """Wait until what is published arrives by itself: a marker that no snapshot had."""
    for marker in range(1000, 1100):
        running.publish([stored(marker, marker)])
        for _ in range(10):
            if gateway.knows(marker, marker) == 1:
                return
            await asyncio.sleep(0.02)
    raise AssertionError("no batch has arrived")


async def test_who_joins_late_knows_all_and_follows() -> None:
    gateway = Gateway()
    async with worker() as running:
        running.publish([stored(1, 2, 3, 4), stored(5, 6)])
        async with gateway.following(endpoints_of(running)):
            await until(lambda: gateway.knows(1, 2, 3, 4) == 2, WAIT_S, "the snapshot")
            await until_live(gateway, running)
            running.publish([CacheRemoved(chain(pack_tokens([1, 2, 3, 4]), SIZE)[1:]), stored(8, 9)])
            await until(lambda: gateway.knows(8, 9) == 1, WAIT_S, "a stored block")
            assert gateway.knows(1, 2, 3, 4) == gateway.knows(5, 6) == 1
            running.publish([CacheCleared()])
            await until(lambda: len(gateway.index) == 0, WAIT_S, "the end of all blocks")
            assert gateway.counts == {"resyncs": 1}


async def test_missed_batches_are_asked_for() -> None:
    gateway = Gateway()
    async with worker() as running, gateway.following(endpoints_of(running)):
        await until_live(gateway, running)
        gaps = gateway.counts["gaps"]  # until the subscription has reached the worker
        running.lose([stored(1, 2, 3, 4)])
        running.lose([CacheRemoved(chain(pack_tokens([1, 2, 3, 4]), SIZE)[1:])])
        running.publish([stored(5, 6)])
        await until(lambda: gateway.knows(5, 6) == 1, WAIT_S, "the batch after the gap")
        assert gateway.knows(1, 2, 3, 4) == 1
        assert gateway.counts["gaps"] == gaps + 1 and gateway.counts["resyncs"] == 1
        running.publish([stored(7, 8)])
        await until(lambda: gateway.knows(7, 8) == 1, WAIT_S, "the next batch")
        assert gateway.counts["lost"] == 0


async def test_what_is_not_kept_any_more_is_learnt_by_a_snapshot() -> None:
    gateway = Gateway()
    async with worker(KvEventsConfig(buffer_steps=2)) as running, gateway.following(endpoints_of(running)):
        await until_live(gateway, running)
        for token in range(4):
            running.lose([stored(token, token)])
        running.publish([stored(5, 6)])
        await until(lambda: gateway.knows(5, 6) == 1, WAIT_S, "the batch after the gap")
        assert all(gateway.knows(token, token) == 1 for token in range(4))
        assert gateway.counts["resyncs"] == 2


async def test_a_worker_that_was_restarted_on_the_same_address_is_learnt_anew() -> None:
    gateway = Gateway()
    async with worker() as first:
        config = first.config
        first.publish([stored(1, 2), stored(3, 4)])
        following = gateway.following(endpoints_of(first))
        await following.__aenter__()
        await until_live(gateway, first)
    try:
        await until(lambda: gateway.knows(1, 2) == -1, WAIT_S, "the end of what the first one held")
        async with worker(config) as second:
            second.publish([stored(3, 4)])
            await until(lambda: gateway.knows(3, 4) == 1, WAIT_S, "what the second one holds")
            assert gateway.knows(1, 2) == 0
            await until_live(gateway, second)
    finally:
        await following.__aexit__(None, None, None)


async def test_workers_without_snapshots_are_asked_for_all_batches() -> None:
    gateway = Gateway()
    async with worker(knows_snapshots=False) as running:
        running.publish([stored(1, 2)])
        async with gateway.following(endpoints_of(running)):
            await until(lambda: gateway.knows(1, 2) == 1, WAIT_S, "the old batches")
            await until_live(gateway, running)


async def test_without_a_replay_socket_a_gap_starts_from_nothing() -> None:
    gateway = Gateway()
    async with worker() as running:
        running.publish([stored(1, 2)])
        async with gateway.following(Endpoints(endpoints_of(running).events)):
            await until(lambda: gateway.knows(1, 2) == 0, WAIT_S, "the stream")
            await until_live(gateway, running)
            running.publish([stored(3, 4)])
            await until(lambda: gateway.knows(3, 4) == 1, WAIT_S, "a batch")
            running.lose([stored(5, 6)])
            running.publish([stored(7, 8)])
            await until(lambda: gateway.knows(7, 8) == 1, WAIT_S, "the batch after the gap")
            assert gateway.knows(3, 4) == gateway.knows(5, 6) == 0


async def test_a_cache_too_large_for_the_index_is_given_up() -> None:
    gateway = Gateway(max_blocks=3)
    async with worker() as running:
        running.publish([stored(1, 2, 3, 4, 5, 6, 7, 8)])
        async with gateway.following(endpoints_of(running)) as task, asyncio.timeout(WAIT_S):
            await task
            assert gateway.knows(1, 2) == -1 and gateway.index.dropped == 1


async def test_pushed_load_is_there_at_once() -> None:
    reports: list[LoadReport] = []
    context = zmq.asyncio.Context()
    async with worker() as running:
        endpoints = endpoints_of(running)
        task = asyncio.create_task(follow_load(context, endpoints.load, MonotonicClock(), reports.append))
        entry = {"num_running_reqs": 3, "num_waiting_reqs": 2, "num_waiting_tokens": 50, "token_usage": 0.5}
        deadline_s = time.monotonic() + WAIT_S
        while not reports:
            assert time.monotonic() < deadline_s
            running.publish_load({"loads": [entry]})
            await asyncio.sleep(0.02)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    context.term()
    report = reports[0]
    assert (report.running_requests, report.waiting_requests, report.waiting_tokens) == (3, 2, 50)
    assert report.token_usage == pytest.approx(0.5)


def with_streams(registry: Registry, url: str, load: str) -> None:
    """A worker that tells where its load is."""
    registry.add(url, source="test")
    registry.identify(url, Identity(model="m", events=Endpoints("", load=load)))


async def test_loads_are_followed_as_workers_come_and_go() -> None:
    """Without events, at an address of the worker's choice; another process at the same address is followed anew."""
    url = "http://127.0.0.1:8"
    registry = Registry()
    streams = LoadStreams(registry, MonotonicClock(), {})
    registry.subscribe(streams.follow)

    async def hears(publisher: LoadPublisher, number: int) -> None:
        deadline_s = time.monotonic() + WAIT_S
        load = registry.snapshot.workers[0].load
        while load.report is None or load.report.running_requests != number:
            assert time.monotonic() < deadline_s
            publisher.publish_load({"loads": [{"num_running_reqs": number}]})
            await asyncio.sleep(0.02)
        assert load.report.pushed and load.others_requests == number

    for number in (3, 4):
        publisher = LoadPublisher(KvEventsConfig(publisher="null", load_endpoint="auto"), "127.0.0.1")
        assert publisher.config.load_endpoint is not None
        with_streams(registry, url, publisher.config.load_endpoint)
        assert len(streams) == 1
        await hears(publisher, number)
        publisher.close()
    registry.lost(url, "dead")
    assert len(streams) == 0
    registry.ready(url)
    assert len(streams) == 1
    registry.remove(url)
    assert len(streams) == 0
    await streams.close()


async def test_of_a_large_fleet_some_loads_are_followed() -> None:
    registry = Registry()
    streams = LoadStreams(registry, MonotonicClock(), {})
    registry.subscribe(streams.follow)
    for number in range(70):
        with_streams(registry, f"http://w{number}:1", f"tcp://127.0.0.1:{number + 1}")
    assert len(streams) == 64
    registry.remove("http://w0:1")
    assert len(streams) == 64  # the next one is
    await streams.close()


async def test_an_endpoint_that_cannot_be_is_told_and_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    streams = LoadStreams(registry, MonotonicClock(), {"http://w:1": Endpoints("", load="tcp://no such host:x")})
    registry.subscribe(streams.follow)
    registry.add("http://w:1", source="test")
    await asyncio.sleep(0.05)
    assert "cannot be followed: cannot connect to tcp://no such host:x" in caplog.text
    await streams.close()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({"publisher": "null"}, None),
        ({"publisher": "null", "load_endpoint": "tcp://x:9"}, Endpoints("", load="tcp://10.0.0.1:9")),
        ({"publisher": "null", "endpoint": "tcp://x:9"}, None),
        ('{"publisher": "zmq", "endpoint": "tcp://*:5557"}', Endpoints("tcp://10.0.0.1:5557", block_size=64)),
        ({"publisher": "zmq", "endpoint": "tcp://evil:99"}, Endpoints("tcp://10.0.0.1:99", block_size=64)),
        ({"publisher": "zmq", "endpoint": "ipc:///tmp/x"}, None),
        ({"publisher": "zmq", "block_size": 16, "replay_endpoint": "tcp://*:7"}, "tcp://10.0.0.1:7"),
        ("nonsense", None),
    ],
)
def test_only_ports_are_taken_from_what_a_worker_tells(config: object, expected: object) -> None:
    told = told_endpoints("http://10.0.0.1:8000", config, 64)
    if isinstance(expected, str):
        assert told is not None and told.replay == expected and told.block_size == 16
    else:
        assert told == expected


@pytest.mark.parametrize(("tells", "taken"), [(256, 256), (None, 0), ("256", 0), (-1, 0)])
def test_how_long_a_shared_beginning_must_be_is_the_worker_s_word(tells: object, taken: int) -> None:
    told = told_endpoints("http://10.0.0.1:8000", {"publisher": "zmq"}, 16, tells)
    assert told is not None and told.shared_tokens == taken
