"""Whatever a request waits for, its total time ends it: every wait is entered for real, then the clock jumps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.routing.policy import RouteRequest
from tests.gateway.resilience.test_time_outs import black_hole, make_ready
from tests.helpers.clock import FakeClock
from tests.helpers.fake_worker import FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import RawClient, RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until
from tests.helpers.story_worker import StoryTeller, request_fields, story_script

TOTAL_S = 8.0
NEVER: dict[str, Any] = {  # no other time-out may help
    "total_timeout_s": TOTAL_S,
    "connect_timeout_s": 3600,
    "first_byte_timeout_s": 3600,
    "idle_timeout_s": 3600,
    "queue_timeout_s": 3600,
    "health_interval_s": 3600,
}
__all__ = ["black_hole"]  # the fixture


@pytest.fixture
def fast_path() -> bool:
    """One data path is enough: what is tested here lies behind both."""
    return True


async def never(request: Received, reply: Reply) -> None:
    await asyncio.sleep(3600)


async def begins(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(event({"choices": [{"delta": {"content": "x"}}]}))
    await asyncio.sleep(3600)


async def later(request: Received, reply: Reply) -> None:
    await reply.json({"error": {"message": "later"}}, 429, retry_after="3600")


@asynccontextmanager
async def waiting(
    workers: list[FakeWorker | str], body: bytes, waits: Callable[[RunningGateway], bool], **settings: Any
) -> AsyncIterator[tuple[RunningGateway, FakeClock, RawClient]]:
    """A gateway with one request that waits as `waits` says."""
    clock = FakeClock(1000.0)
    async with AsyncExitStack() as stack:
        for worker in workers:
            if isinstance(worker, FakeWorker):
                await stack.enter_async_context(worker)
        ready = sum(isinstance(worker, FakeWorker) for worker in workers)
        gateway = await stack.enter_async_context(
            running_gateway(workers, ready=ready, clock=clock, **{**NEVER, **settings})
        )
        for worker in workers:
            if isinstance(worker, str):
                make_ready(gateway, worker)
        client = await gateway.raw()
        stack.callback(client.close)
        await client.send(request_bytes(body))
        await until(lambda: waits(gateway), 10, "the request waits")
        yield gateway, clock, client


async def ends(gateway: RunningGateway, clock: FakeClock, client: RawClient) -> tuple[int, bytes]:
    """Not before its time, and then at once."""
    answer = asyncio.create_task(client.response())
    clock.advance(TOTAL_S)
    gateway.gateway.forwarder.check_times(clock.now_s())
    live = gateway.gateway.forwarder.inflight
    clock.advance(0.001)
    gateway.gateway.forwarder.check_times(clock.now_s())
    assert (live, gateway.inflight) == (1, 0)
    status, _, body = await asyncio.wait_for(answer, 10)
    return status, body


def at_worker(number: int, worker: FakeWorker) -> Callable[[RunningGateway], bool]:
    return lambda gateway: worker.active == number


async def test_in_a_connect(fast_path: bool, black_hole: str) -> None:
    async with waiting([black_hole], chat_body(), lambda gateway: gateway.inflight == 1) as (gateway, clock, client):
        status, body = await ends(gateway, clock, client)
        assert (status, json.loads(body)["error"]["code"]) == (504, "upstream_timeout")
        load = gateway.gateway.registry.snapshot.workers[0]
        assert load.status.value == "ready"  # it did not fail: it was not given its time


@pytest.mark.parametrize("stream", [True, False])
async def test_before_the_head(fast_path: bool, stream: bool) -> None:
    worker = FakeWorker(never)
    async with waiting([worker], chat_body(stream=stream), at_worker(1, worker)) as (gateway, clock, client):
        status, _ = await ends(gateway, clock, client)
        assert status == 504
        await until(lambda: worker.active == 0, 10, "the worker was left")


async def test_in_a_stream(fast_path: bool) -> None:
    worker = FakeWorker(begins)
    async with waiting([worker], chat_body(stream=True), at_worker(1, worker)) as (gateway, clock, client):
        await asyncio.sleep(0.05)
        status, body = await ends(gateway, clock, client)
        assert status == 200 and b'"upstream_timeout"' in body and b"[DONE]" not in body


async def test_in_the_wait_before_a_retry(fast_path: bool) -> None:
    """The wait is entered because it seems to fit; but whoever is to wake us may be late."""
    refusing, other = FakeWorker(later), FakeWorker(later)

    def waits(gateway: RunningGateway) -> bool:
        return gateway.metric("retries_total", cause="status_429") == 2

    third = FakeWorker(later)
    async with waiting(
        [refusing, other, third], chat_body(), waits, retry_initial_backoff_ms=7000, retry_max_backoff_ms=7000,
        retry_jitter_factor=0,
    ) as (gateway, clock, client):  # fmt: skip
        status, _ = await ends(gateway, clock, client)
        assert status == 504


async def test_no_wait_is_begun_that_goes_beyond_it(fast_path: bool) -> None:
    workers = [FakeWorker(later) for _ in range(3)]
    settings = {"retry_initial_backoff_ms": 9000, "retry_max_backoff_ms": 9000, "retry_jitter_factor": 0}
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        gateway = await stack.enter_async_context(running_gateway(workers, **{**NEVER, **settings}))
        answer = await asyncio.wait_for(gateway.chat(), 10)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3600")


async def test_in_the_queue(fast_path: bool) -> None:
    """The gate has a time-out of its own, which is at most the total one."""
    worker = FakeWorker(never)
    async with waiting(
        [worker], chat_body(), at_worker(1, worker), max_concurrent_requests=1
    ) as (gateway, clock, client):  # fmt: skip
        clock.advance(1.0)
        second = await gateway.raw()
        await second.send(request_bytes(chat_body()))
        await until(lambda: gateway.gateway.forwarder.inflight == 2, 10, "the second one waits")
        clock.advance(TOTAL_S - 0.5)
        gateway.gateway.forwarder.check_times(clock.now_s())
        status, _, _ = await asyncio.wait_for(client.response(), 10)
        await until(lambda: worker.active == 1, 10, "the second one has its turn")
        clock.advance(0.6)
        gateway.gateway.forwarder.check_times(clock.now_s())
        assert (status, (await asyncio.wait_for(second.response(), 10))[0]) == (504, 504)
        third, fourth = await gateway.raw(), await gateway.raw()
        await third.send(request_bytes(chat_body()))
        await until(lambda: worker.active == 1, 10, "the third one is there")
        await fourth.send(request_bytes(chat_body()))
        await until(lambda: gateway.gateway.forwarder.inflight == 2, 10, "the fourth one waits")
        clock.advance(TOTAL_S + 1)
        gateway.gateway.forwarder.check_times(clock.now_s())
        assert [(await asyncio.wait_for(c.response(), 10))[0] for c in (third, fourth)] in ([504, 504], [504, 503])
        assert gateway.gateway.forwarder.inflight == 0
        for other in (second, third, fourth):
            other.close()


class Slow:
    """A Preparer that never comes back."""

    def prepare(
        self, body: bytes, route: RouteRequest, done: Callable[[RouteRequest], None], request_id: bytes
    ) -> None:
        self.done = done


async def test_while_its_tokens_are_worked_out(fast_path: bool) -> None:
    clock, slow = FakeClock(1000.0), Slow()
    async with FakeWorker() as worker, running_gateway([worker], clock=clock, **NEVER) as gateway:
        gateway.gateway.forwarder.preparer = slow  # type: ignore[assignment]
        client = await gateway.raw()
        await client.send(request_bytes(chat_body()))
        await until(lambda: gateway.gateway.forwarder.inflight == 1, 10, "it waits")
        status, _ = await ends_without_worker(gateway, clock, client)
        assert status == 504
        slow.done(RouteRequest())  # too late: nothing happens
        assert not worker.requests and gateway.inflight == 0
        client.close()


async def ends_without_worker(gateway: RunningGateway, clock: FakeClock, client: RawClient) -> tuple[int, bytes]:
    clock.advance(TOTAL_S + 0.001)
    gateway.gateway.forwarder.check_times(clock.now_s())
    status, _, body = await asyncio.wait_for(client.response(), 10)
    return status, body


@pytest.mark.parametrize("stuck", ["counting", "connecting", "answering"])
async def test_while_a_stream_is_resumed(fast_path: bool, stuck: str, black_hole: str) -> None:
    """The next worker does not count, take the connection, or answer."""
    tellers = StoryTeller("Once upon a time there was a cat.")
    dies = FakeWorker(story_script(tellers, lambda: 402))
    asked = asyncio.Event()

    async def hangs(request: Received, reply: Reply) -> None:
        asked.set()
        await asyncio.sleep(3600)

    other: dict[str, Callable[[Received, Reply], Awaitable[None]]] = {"/tokenize": hangs} if stuck == "counting" else {}
    following: FakeWorker | str = black_hole if stuck == "connecting" else FakeWorker(hangs, other=other)
    fields = request_fields(True, **({"max_tokens": 20} if stuck == "counting" else {}))

    def waits(gateway: RunningGateway) -> bool:
        return gateway.metric("retries_total", cause="resume") == 1 and (stuck == "connecting" or asked.is_set())

    async with waiting(
        [dies, following], json.dumps(fields).encode(), waits, resume_streams=True, policy="least_load"
    ) as (gateway, clock, client):  # fmt: skip
        status, body = await ends(gateway, clock, client)
        assert status == 200 and b'"upstream_timeout"' in body and b"[DONE]" not in body
