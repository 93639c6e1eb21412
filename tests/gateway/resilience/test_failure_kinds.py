"""The three kinds of failure through a whole gateway: who is still asked afterwards, and what the client sees."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.fleet.worker import WorkerView
from gateway.resilience.breaker import BreakerState
from gateway.resilience.guard import Standing
from tests.helpers.fake_worker import FakeWorker, Received, Reply, Script, answer, event
from tests.helpers.gateway_harness import CHAT, RunningGateway, chat_body, running_gateway
from tests.helpers.processes import until

QUICK_BREAKER: dict[str, Any] = {
    "cb_failure_threshold": 3,
    "cb_success_threshold": 2,
    "cb_timeout_duration_s": 0.5,
    "idle_timeout_s": 1,
}


@pytest.fixture
def fast_path() -> bool:
    """One data path is enough: what is tested here lies behind both."""
    return True


def answers(status: int, **headers: str) -> Script:
    async def script(request: Received, reply: Reply) -> None:
        await reply.json({"error": {"message": "no"}}, status, **headers)

    return script


async def dies_in_its_stream(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    await reply.chunk(event("x"))
    await asyncio.sleep(0.01)
    reply.cut()


async def cut(request: Received, reply: Reply) -> None:
    reply.cut()


async def garbage(request: Received, reply: Reply) -> None:
    await reply.raw(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    reply.cut()


def view(gateway: RunningGateway, worker: FakeWorker) -> WorkerView:
    found = gateway.gateway.registry.snapshot.get(worker.url)
    assert found is not None
    return found


def state(gateway: RunningGateway, worker: FakeWorker) -> BreakerState:
    return view(gateway, worker).guard.breaker.state


async def test_a_hundred_invalid_requests_open_nothing(fast_path: bool) -> None:
    async with (
        FakeWorker(answers(400)) as worker,
        running_gateway([worker], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        for status in (400, 401, 404, 422):
            worker.script = answers(status)
            assert [(await gateway.chat()).status_code for _ in range(25)] == [status] * 25
        assert state(gateway, worker) is BreakerState.CLOSED
        assert view(gateway, worker).guard.standing is Standing.GOOD
        worker.script = answer
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("status", [429, 503])
async def test_back_pressure_of_the_only_worker_passes_with_its_headers(fast_path: bool, status: int) -> None:
    async with (
        FakeWorker(answers(status, retry_after="7", x_custom="kept")) as worker,
        running_gateway([worker], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        for _ in range(20):
            reply = await gateway.chat()
            assert (reply.status_code, reply.headers["retry-after"], reply.headers["x-custom"]) == (status, "7", "kept")
        assert len(worker.requests) == 20  # it is not shed: it decides by itself
        assert state(gateway, worker) is BreakerState.CLOSED
        worker.script = answer
        assert (await gateway.chat()).status_code == 200


async def test_a_worker_that_said_later_is_spared_for_a_while(fast_path: bool) -> None:
    async with (
        FakeWorker(answers(429, retry_after="1")) as full,
        FakeWorker() as free,
        running_gateway([full, free], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        assert [(await gateway.chat()).status_code for _ in range(10)] == [200] * 10
        assert (len(full.requests), len(free.requests)) == (1, 10)
        assert state(gateway, full) is BreakerState.CLOSED
        listed = (await gateway.client.get("/workers")).json()["workers"]
        assert [worker["resting"] for worker in listed] == [True, False]
        full.script = answer
        await until(lambda: view(gateway, full).guard.standing is Standing.GOOD, 3, "the rest is over")
        assert [(await gateway.chat()).status_code for _ in range(4)] == [200] * 4
        assert len(full.requests) == 3


async def test_who_asks_for_a_worker_by_name_gets_its_own_word(fast_path: bool) -> None:
    async with (
        FakeWorker(answers(429, retry_after="5")) as full,
        FakeWorker() as free,
        running_gateway([full, free], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        assert (await gateway.chat()).status_code == 200
        assert view(gateway, full).guard.standing is Standing.RESTING
        named = {"x-canopy-target-worker": full.url}
        for _ in range(3):
            reply = await gateway.client.post(CHAT, content=chat_body(), headers=named)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "5")
        assert (len(full.requests), len(free.requests)) == (4, 1)


async def test_a_retry_waits_for_a_worker_s_rest_to_end(fast_path: bool) -> None:
    """The only worker left has said `Retry-After: 1`; there is time, so it is asked then, and not before."""
    async with (
        FakeWorker(answers(429, retry_after="1")) as full,
        FakeWorker() as other,
        running_gateway([full, other], fast_path=fast_path) as gateway,
    ):
        assert (await gateway.chat()).status_code == 200
        refused_s = time.monotonic()
        full.script, other.script = answer, answers(500)
        assert (await gateway.chat()).status_code == 200
        assert time.monotonic() - refused_s >= 0.9
        assert (len(full.requests), len(other.requests)) == (2, 2)


@pytest.mark.parametrize("limits", [{"retry_max_backoff_ms": 500}, {"total_timeout_s": 0.8}])
async def test_a_retry_does_not_wait_longer_than_allowed(fast_path: bool, limits: dict[str, Any]) -> None:
    async with (
        FakeWorker(answers(429, retry_after="3")) as full,
        FakeWorker() as other,
        running_gateway([full, other], fast_path=fast_path, **limits) as gateway,
    ):
        assert (await gateway.chat()).status_code == 200
        full.script, other.script = answer, answers(500)
        start_s = time.monotonic()
        assert (await gateway.chat()).status_code == 500  # what there is to say, at once
        assert time.monotonic() - start_s < 0.5
        assert len(full.requests) == 1


@pytest.mark.parametrize("script", [answers(500), answers(502), cut, garbage])
async def test_a_worker_that_fails_its_requests_is_left_out(fast_path: bool, script: Script) -> None:
    """Its /health is fine all the time."""
    async with (
        FakeWorker(script) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path, **(QUICK_BREAKER | {"cb_timeout_duration_s": 60})) as gateway,
    ):
        for _ in range(12):
            assert (await gateway.chat()).status_code == 200
        assert state(gateway, bad) is BreakerState.OPEN
        assert gateway.metric("breaker_transitions_total", state="open") == 1
        before = len(bad.requests)
        assert [(await gateway.chat()).status_code for _ in range(10)] == [200] * 10
        assert len(bad.requests) == before


async def test_deaths_inside_streams_count(fast_path: bool) -> None:
    """The head of each of these answers was a fine 200."""
    async with (
        FakeWorker(dies_in_its_stream) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path, **(QUICK_BREAKER | {"cb_timeout_duration_s": 60})) as gateway,
    ):
        broken = 0
        while state(gateway, bad) is BreakerState.CLOSED:
            broken += b"worker_failed" in (await gateway.chat(stream=True)).content
        assert broken == 3
        bodies = [(await gateway.chat(stream=True)).content for _ in range(6)]
        assert not any(b"worker_failed" in body for body in bodies)


async def test_an_open_breaker_tries_and_closes(fast_path: bool) -> None:
    async with (
        FakeWorker(answers(500)) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        while state(gateway, bad) is BreakerState.CLOSED:
            assert (await gateway.chat()).status_code == 200
        bad.script = answer
        async with asyncio.timeout(10):
            while state(gateway, bad) is not BreakerState.CLOSED:
                assert (await gateway.chat()).status_code == 200
                await asyncio.sleep(0.02)
        before = len(bad.requests)
        await gateway.chat()
        await gateway.chat()
        assert len(bad.requests) == before + 1


async def test_half_open_lets_few_through(fast_path: bool) -> None:
    """Thirty requests at once meet a half-open breaker: so many are trials, the others go elsewhere."""
    gate = asyncio.Event()

    async def waits(request: Received, reply: Reply) -> None:
        await gate.wait()
        await answer(request, reply)

    async with (
        FakeWorker(answers(500)) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        while state(gateway, bad) is BreakerState.CLOSED:
            await gateway.chat()
        bad.script = good.script = waits
        await until(lambda: state(gateway, bad) is BreakerState.HALF_OPEN, 3, "it is half-open")
        asked = asyncio.gather(*(gateway.chat() for _ in range(30)))
        await until(lambda: bad.active + good.active == 30, 5, "all are there")
        assert (bad.active, good.active) == (2, 28)
        gate.set()
        assert {reply.status_code for reply in await asked} == {200}
        assert state(gateway, bad) is BreakerState.CLOSED


async def test_clients_that_leave_a_trial_free_its_place(fast_path: bool) -> None:
    async def silent(request: Received, reply: Reply) -> None:
        await asyncio.sleep(60)

    async with (
        FakeWorker(answers(500)) as bad,
        running_gateway([bad], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        while state(gateway, bad) is BreakerState.CLOSED:
            await gateway.chat()
        bad.script = silent
        await until(lambda: state(gateway, bad) is BreakerState.HALF_OPEN, 3, "it is half-open")
        asked = [asyncio.create_task(gateway.chat()) for _ in range(2)]
        await until(lambda: view(gateway, bad).guard.standing is Standing.BARRED, 5, "all places are taken")
        for task in asked:
            task.cancel()
        await until(lambda: view(gateway, bad).guard.standing is Standing.GOOD, 5, "they are free again")
        bad.script = answer
        assert [(await gateway.chat()).status_code for _ in range(2)] == [200] * 2
        assert state(gateway, bad) is BreakerState.CLOSED


async def test_where_all_fail_the_last_door_stays_open(fast_path: bool) -> None:
    """A request that every worker chokes on must not shut out the others' requests."""

    async def chokes(request: Received, reply: Reply) -> None:
        await (answers(500) if b"poison" in request.body else answer)(request, reply)

    async with (
        FakeWorker(chokes) as a,
        FakeWorker(chokes) as b,
        running_gateway([a, b], fast_path=fast_path, **(QUICK_BREAKER | {"cb_timeout_duration_s": 60})) as gateway,
    ):
        assert {(await gateway.chat("poison")).status_code for _ in range(10)} == {500}
        assert {state(gateway, worker) for worker in (a, b)} == {BreakerState.OPEN}
        assert [(await gateway.chat("fine")).status_code for _ in range(4)] == [200] * 4


async def test_breaker_and_retries_can_be_disabled(fast_path: bool) -> None:
    async with (
        FakeWorker(answers(500)) as bad,
        FakeWorker() as good,
        running_gateway(
            [bad, good], fast_path=fast_path, disable_circuit_breaker=True, disable_retries=True, **QUICK_BREAKER
        ) as gateway,
    ):
        statuses = [(await gateway.chat()).status_code for _ in range(40)]
        assert statuses.count(500) == len(bad.requests) == 20
        assert state(gateway, bad) is BreakerState.CLOSED


async def test_another_process_at_the_same_address_is_met_without_prejudice(fast_path: bool) -> None:
    async with (
        FakeWorker(answers(500)) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path, **(QUICK_BREAKER | {"cb_timeout_duration_s": 60})) as gateway,
    ):
        while state(gateway, bad) is BreakerState.CLOSED:
            await gateway.chat()
        await bad.kill()
        bad.script, bad.incarnation = answer, "life-2"
        await bad.start()
        await until(lambda: view(gateway, bad).identity.incarnation == "life-2", 5, "its new life is noticed")
        before = len(bad.requests)
        assert [(await gateway.chat()).status_code for _ in range(4)] == [200] * 4
        assert len(bad.requests) == before + 2


async def test_a_refused_key_is_the_client_s_matter(fast_path: bool) -> None:
    """A worker that answers 401 stays, and sees the key and every other header."""
    async with (
        FakeWorker(answers(401)) as worker,
        running_gateway([worker], fast_path=fast_path, **QUICK_BREAKER) as gateway,
    ):
        for _ in range(5):
            reply = await gateway.client.post(
                CHAT, content=chat_body(), headers={"authorization": "Bearer k", "x-custom": "v"}
            )
            assert (reply.status_code, reply.json()) == (401, {"error": {"message": "no"}})
        assert {(r.header("authorization"), r.header("x-custom")) for r in worker.requests} == {("Bearer k", "v")}
        assert view(gateway, worker).guard.standing is Standing.GOOD
        assert json.loads((await gateway.client.get("/readiness")).content)["ready_workers"] == 1
