"""Several gateway processes on one port, as processes: shared connections, workers and metrics, deaths, the end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import UserError
from common.process import bind_port
from gateway.__main__ import main
from gateway.processes.parent import shared_port
from tests.gateway.test_server import gateway_process, until_ready
from tests.helpers.fake_worker import FakeWorker, Received, Reply, answer
from tests.helpers.gateway_harness import CHAT, chat_body
from tests.helpers.processes import assert_all_end


def fresh(url: str) -> httpx.AsyncClient:
    """A client that makes a new connection for each request, so that it meets all processes."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=20, limits=limits)


async def by_process(client: httpx.AsyncClient, name: str) -> dict[str, float]:
    """The sum of a metric's samples for each process."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if sample.name == f"canopy_gateway_{name}":
                process = sample.labels["process"]
                totals[process] = totals.get(process, 0) + sample.value
    return totals


async def all_say(client: httpx.AsyncClient, name: str, value: float) -> None:
    """Wait until both processes report this value."""
    async with asyncio.timeout(10):
        while await by_process(client, name) != {"0": value, "1": value}:
            await asyncio.sleep(0.05)


async def test_they_share_port_workers_and_metrics() -> None:
    async with (
        FakeWorker() as a,
        FakeWorker() as b,
        gateway_process("--worker-urls", a.url, "--gateway-processes", "2", "--policy", "random") as (process, url),
        fresh(url) as client,
    ):
        await all_say(client, "workers", 1)
        answers = [await client.post(CHAT, content=chat_body()) for _ in range(40)]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.headers["x-request-id"] for answer in answers}) == 40
        counts = await by_process(client, "requests_total")
        assert sum(counts.values()) == 40 and min(counts.values()) > 0
        assert (await client.post("/workers", json={"url": b.url})).status_code == 202
        await all_say(client, "workers", 2)
        await until_ready(client)

        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        os.kill(children[0].pid, signal.SIGKILL)  # its successor learns of b from the other one
        async with asyncio.timeout(10):
            while len([c for c in psutil.Process(process.pid).children() if c.pid != children[0].pid]) < 2:
                await asyncio.sleep(0.05)
        await all_say(client, "workers", 2)
        assert (await client.delete("/workers", params={"url": b.url, "force": True})).status_code == 202
        await all_say(client, "workers", 1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert_all_end([child.pid for child in children], 5)


async def test_all_drain_when_told_to_stop() -> None:
    async def slow(request: Received, reply: Reply) -> None:
        await asyncio.sleep(0.5)
        await answer(request, reply)

    async with (
        FakeWorker(slow) as worker,
        gateway_process("--worker-urls", worker.url, "--gateway-processes", "2") as (process, url),
        fresh(url) as client,
    ):
        await all_say(client, "workers", 1)
        await until_ready(client)
        chats = [asyncio.create_task(client.post(CHAT, content=chat_body())) for _ in range(10)]
        async with asyncio.timeout(5):
            while worker.active < 10:
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert [(await chat).status_code for chat in chats] == [200] * 10
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_nothing_is_left_when_the_parent_is_killed() -> None:
    async with gateway_process("--gateway-processes", "2") as (process, url), fresh(url) as client:
        await client.get("/liveness")
        children = [child.pid for child in psutil.Process(process.pid).children()]
        process.kill()
        assert_all_end(children, 5)


def test_a_port_that_is_taken_is_told() -> None:
    with (
        bind_port("127.0.0.1", 0) as taken,
        pytest.raises(UserError, match="Cannot listen"),
        shared_port("127.0.0.1", taken.getsockname()[1], 2),
    ):
        pass
    with shared_port("127.0.0.1", 0, 2) as (first, second):
        assert first.getsockname() == second.getsockname()
        with pytest.raises(UserError, match="Cannot listen"), shared_port("127.0.0.1", first.getsockname()[1], 2):
            pass


def test_bad_files_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gateway-processes", "2", "--api-key-file", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
