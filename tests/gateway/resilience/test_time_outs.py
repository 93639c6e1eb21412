"""Connect, first byte, idle, total: each time-out ends its request with one clear error, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.fleet.worker import Identity
from gateway.resilience.timeouts import MAX_SWEEP_S, Timeouts
from tests.helpers.fake_worker import DONE, MODEL, FakeWorker, Received, Reply, Script, answer, event
from tests.helpers.gateway_harness import CHAT, RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until

LIMIT_S = 0.4
LATE_S = 1.5  # what a sweep and a busy machine may add


async def silent(request: Received, reply: Reply) -> None:
    await asyncio.sleep(60)


async def stalls(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(event(1))
    await asyncio.sleep(60)


async def drips(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    while True:
        await reply.chunk(event(1))
        await asyncio.sleep(0.05)


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes no connection: a listener whose backlog is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def make_ready(gateway: RunningGateway, url: str) -> None:
    """As if it had answered a probe a moment ago."""
    registry = gateway.gateway.registry
    registry.add(url, source="static")  # unless discovery has done so
    registry.identify(url, Identity(model=MODEL))
    registry.ready(url)


async def streamed(gateway: RunningGateway) -> tuple[list[bytes], float]:
    """Events of a stream, and how long it took."""
    client = await gateway.raw()
    start_s = time.monotonic()
    await client.send(request_bytes(chat_body(stream=True)))
    status, _, body = await client.response()
    client.close()
    assert status == 200
    return body.removesuffix(b"\n\n").split(b"\n\n"), time.monotonic() - start_s


def error_of(last_event: bytes) -> dict[str, object]:
    return dict(json.loads(last_event.removeprefix(b"data: "))["error"])


async def test_no_connection(fast_path: bool, black_hole: str) -> None:
    async with running_gateway(
        [black_hole], ready=0, fast_path=fast_path, connect_timeout_s=LIMIT_S, health_interval_s=60
    ) as gateway:
        make_ready(gateway, black_hole)
        start_s = time.monotonic()
        reply = await gateway.chat()
        assert LIMIT_S <= time.monotonic() - start_s < LIMIT_S + LATE_S
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "connect_timeout")
        assert gateway.metric("upstream_errors_total", kind="connect_timeout") == 1
        assert gateway.inflight == 0


async def test_no_connection_but_another_worker(fast_path: bool, black_hole: str) -> None:
    async with (
        FakeWorker() as good,
        running_gateway(
            [black_hole, good], ready=1, fast_path=fast_path, connect_timeout_s=LIMIT_S, health_interval_s=60
        ) as gateway,
    ):
        make_ready(gateway, black_hole)
        assert [(await gateway.chat()).status_code for _ in range(2)] == [200, 200]
        assert gateway.metric("retries_total", cause="connect_timeout") == 1
        assert gateway.inflight == 0


async def test_no_first_byte(fast_path: bool) -> None:
    """The hung worker costs its own request the time-out, and the others nothing."""
    async with (
        FakeWorker(silent) as hung,
        FakeWorker() as good,
        running_gateway([hung, good], fast_path=fast_path, first_byte_timeout_s=LIMIT_S) as gateway,
    ):

        async def timed() -> tuple[int, float]:
            start_s = time.monotonic()
            return (await gateway.chat()).status_code, time.monotonic() - start_s

        results = await asyncio.gather(*(timed() for _ in range(20)))
        late = [took_s for status, took_s in results if status == 504]
        quick = [took_s for status, took_s in results if status == 200]
        assert (len(late), len(quick)) == (10, 10)
        assert all(LIMIT_S <= took_s < LIMIT_S + LATE_S for took_s in late)
        assert max(quick) < LIMIT_S
        assert len(good.requests) == 10  # nobody's prompt was prefilled twice
        await until(lambda: hung.active == 0, 1, "the hung worker was left")


async def test_slow_prefill_is_waited_for_and_not_doubled(fast_path: bool) -> None:
    async def slow(request: Received, reply: Reply) -> None:
        await asyncio.sleep(0.5)
        await answer(request, reply)

    async with FakeWorker(slow) as a, FakeWorker(slow) as b, running_gateway([a, b], fast_path=fast_path) as gateway:
        assert [(await gateway.chat(stream=stream)).status_code for stream in (True, False)] == [200, 200]
        assert len(a.requests) + len(b.requests) == 2


@pytest.mark.parametrize(
    ("script", "limit"), [(stalls, "idle_timeout_s"), (stalls, "total_timeout_s"), (drips, "total_timeout_s")]
)
async def test_no_end(fast_path: bool, script: Script, limit: str) -> None:
    limits: dict[str, Any] = {limit: LIMIT_S}
    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], fast_path=fast_path, **limits) as gateway,
    ):
        (*before, last), took_s = await streamed(gateway)
        assert before and set(before) == {b"data: 1"}
        error = error_of(last)
        assert (error["code"], error["type"], error["param"]) == ("upstream_timeout", "server_error", None)
        assert DONE.strip() not in (*before, last)
        assert LIMIT_S <= took_s < LIMIT_S + LATE_S
        assert gateway.metric("upstream_errors_total", kind="timeout") == 1
        assert gateway.metric("requests_total", endpoint=CHAT, status="504") == 1
        assert gateway.inflight == 0
        await until(lambda: worker.active == 0, 1, "the worker was left")


@pytest.mark.parametrize(
    ("age_s", "silence_s", "begun", "says"),
    [
        (9, 4, False, None),
        (9, 6, False, "no answer from the worker within 5 s"),
        (9, 2, True, None),
        (9, 4, True, "nothing from the worker for 3 s"),
        (11, 0, True, "no end of the answer within 10 s"),
        (11, 0, False, "no end of the answer within 10 s"),
    ],
)
def test_which_limit_is_passed(age_s: float, silence_s: float, begun: bool, says: str | None) -> None:
    limits = Timeouts(connect_s=1, first_byte_s=5, idle_s=3, total_s=10)
    assert limits.exceeded(age_s=age_s, silence_s=silence_s, begun=begun) == says
    assert limits.sweep_s == MAX_SWEEP_S
    assert Timeouts(connect_s=1, first_byte_s=5, idle_s=1, total_s=10).sweep_s == 0.25


async def test_time_does_not_run_while_words_flow(fast_path: bool) -> None:
    """A stream longer than the first-byte and idle limits, each of whose gaps is short."""

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        for index in range(12):
            await reply.chunk(event(index))
            await asyncio.sleep(0.1)
        await reply.chunk(DONE)
        await reply.last_chunk()

    limits: dict[str, Any] = {"idle_timeout_s": 0.6, "first_byte_timeout_s": 0.6}
    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path, **limits) as gateway:
        events, took_s = await streamed(gateway)
        assert took_s > 1 and len(events) == 13
