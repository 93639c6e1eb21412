"""Workers that come, go, restart and drain while requests flow."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from gateway.fleet.worker import WorkerStatus
from tests.helpers.fake_worker import MODEL, FakeWorker, Received, Reply, answer, event
from tests.helpers.gateway_harness import RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until

NOBODY = ("http://127.0.0.1:9", "http://127.0.0.1:11", "http://127.0.0.1:13")  # nothing listens there


@pytest.fixture
def fast_path() -> bool:
    """One data path is enough: what is tested here lies behind both."""
    return True


async def slow_stream(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    for index in range(20):
        await reply.chunk(event(index))
        await asyncio.sleep(0.02)
    await reply.chunk(b"data: [DONE]\n\n")
    await reply.last_chunk()


async def read_stream(gateway: RunningGateway) -> tuple[int, bytes]:
    client = await gateway.raw()
    await client.send(request_bytes(chat_body(stream=True)))
    status, _, body = await client.response()
    client.close()
    return status, body


async def test_one_of_four_is_enough_to_serve(fast_path: bool) -> None:
    async with (
        FakeWorker() as worker,
        running_gateway([*NOBODY, worker.url], ready=1, fast_path=fast_path) as gateway,
    ):
        assert (await gateway.client.get("/readiness")).json()["ready_workers"] == 1
        assert [(await gateway.chat()).status_code for _ in range(4)] == [200] * 4


async def test_a_removed_worker_costs_only_what_runs_there(fast_path: bool) -> None:
    async with (
        FakeWorker(slow_stream) as leaving,
        FakeWorker(slow_stream) as staying,
        running_gateway([leaving, staying], fast_path=fast_path) as gateway,
    ):
        streams = [asyncio.create_task(read_stream(gateway)) for _ in range(20)]
        await until(lambda: leaving.active + staying.active == 20, 5, "all run")
        there = leaving.active
        removed = await gateway.client.delete("/workers", params={"url": leaving.url, "force": "true"})
        assert removed.status_code == 202
        later = [await gateway.chat(stream=True) for _ in range(5)]
        bodies = [body for _, body in await asyncio.gather(*streams)]
        assert sum(b'"worker_failed"' in body for body in bodies) == there
        assert sum(body.endswith(b"data: [DONE]\n\n") for body in bodies) == 20 - there
        assert all(reply.content.endswith(b"data: [DONE]\n\n") for reply in later)
        assert gateway.inflight == 0


async def test_a_draining_worker_finishes_what_it_has(fast_path: bool) -> None:
    async with (
        FakeWorker(slow_stream) as leaving,
        FakeWorker(slow_stream) as staying,
        running_gateway([leaving, staying], fast_path=fast_path) as gateway,
    ):
        streams = [asyncio.create_task(read_stream(gateway)) for _ in range(10)]
        await until(lambda: leaving.active + staying.active == 10, 5, "all run")
        await gateway.client.delete("/workers", params={"url": leaving.url})
        before = len(leaving.requests)
        assert [(await gateway.chat()).status_code for _ in range(4)] == [200] * 4
        assert len(leaving.requests) == before
        assert all(body.endswith(b"data: [DONE]\n\n") for _, body in await asyncio.gather(*streams))
        await until(lambda: gateway.gateway.registry.snapshot.get(leaving.url) is None, 3, "it is gone when idle")


async def test_draining_ends_with_the_grace_time(fast_path: bool) -> None:
    async def endless(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        while True:
            await reply.chunk(event(1))
            await asyncio.sleep(0.02)

    async with (
        FakeWorker(endless) as leaving,
        running_gateway([leaving], fast_path=fast_path, drain_grace_s=0.5, idle_timeout_s=1) as gateway,
    ):
        stream = asyncio.create_task(read_stream(gateway))
        await until(lambda: leaving.active, 5, "it runs")
        start_s = time.monotonic()
        await gateway.client.delete("/workers", params={"url": leaving.url})
        _, body = await stream
        assert 0.4 < time.monotonic() - start_s < 3
        last = body.removesuffix(b"\n\n").split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "worker_failed"
        await until(lambda: leaving.active == 0, 1, "the worker was left")


@pytest.mark.parametrize("probes_down", [1, 12])
async def test_a_worker_is_back_within_two_probes_however_long_it_was_away(probes_down: int) -> None:
    async with FakeWorker() as worker, running_gateway([worker], health_interval_s=0.1) as gateway:
        await worker.kill()
        failures = gateway.metric("probe_failures_total")
        await until(lambda: gateway.metric("probe_failures_total") >= failures + probes_down, 20, "it is missed")
        snapshot = gateway.gateway.registry.snapshot.get(worker.url)
        assert snapshot is not None and snapshot.status is WorkerStatus.DEGRADED
        probes: list[str] = []
        control = worker._control

        async def counted(path: str, reply: Reply) -> None:
            probes.append(path)
            await control(path, reply)

        worker._control = counted  # type: ignore[method-assign]
        await worker.start()
        await until(lambda: gateway.gateway.registry.snapshot.ready.get(MODEL), 5, "it is back")
        assert probes.count("/health") <= 2
        assert (await gateway.chat()).status_code == 200


async def test_rolling_restarts_lose_nothing_that_has_not_begun(fast_path: bool) -> None:
    """Each worker in turn dies and comes back as another process, while requests without streaming flow."""

    async def short(request: Received, reply: Reply) -> None:
        await asyncio.sleep(0.01)
        await answer(request, reply)

    workers = [FakeWorker(short) for _ in range(3)]
    async with (
        workers[0],
        workers[1],
        workers[2],
        running_gateway(workers, fast_path=fast_path, health_interval_s=0.1, retry_budget_per_s=100) as gateway,
    ):
        asked: list[asyncio.Task[int]] = []

        async def one() -> int:
            return (await gateway.chat()).status_code

        async def flow() -> None:
            while True:
                asked.append(asyncio.create_task(one()))
                await asyncio.sleep(0.02)

        flowing = asyncio.create_task(flow())
        for worker in workers:
            await asyncio.sleep(0.1)
            await worker.kill()
            await asyncio.sleep(0.2)
            worker.incarnation = f"next-{worker.port}"
            await worker.start()
            await until(lambda: len(gateway.gateway.registry.snapshot.ready.get(MODEL, ())) == 3, 5, "all are back")
        flowing.cancel()
        async with asyncio.timeout(5):
            statuses = await asyncio.gather(*asked)
        assert len(statuses) > 20 and set(statuses) == {200}
        assert gateway.inflight == 0
