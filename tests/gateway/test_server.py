"""The gateway as a process: start, faults of the user, signals, and nothing left behind."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.__main__ import main
from gateway.app import build
from gateway.config import GatewaySettings
from gateway.server import GatewayServer, uvicorn_config
from tests.helpers.fake_worker import FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import CHAT, chat_body
from tests.helpers.processes import until

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0


@asynccontextmanager
async def gateway_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`python -m gateway` on a free port: (process, address). Killed on the way out if it still runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "--port", str(port), *arguments, cwd=ROOT, stderr=subprocess.PIPE
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            assert process.stderr is not None
            log = b""
            while b"listening" not in log:
                line = await process.stderr.readline()
                assert line, log.decode()
                log += line
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while (await client.get("/readiness")).status_code != 200:
            await asyncio.sleep(0.02)


async def slow(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    for index in range(8):
        await reply.chunk(event(index))
        await asyncio.sleep(0.1)
    await reply.last_chunk()


async def test_sigterm_drains_then_ends_cleanly() -> None:
    async with (
        FakeWorker(slow) as worker,
        gateway_process("--worker-urls", worker.url) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
    ):
        await until_ready(client)
        async with client.stream("POST", CHAT, content=chat_body(stream=True)) as answer:
            pieces = answer.aiter_raw()
            body = await anext(pieces)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                while (await client.get("/readiness")).status_code != 503:
                    await asyncio.sleep(0.02)
            async for piece in pieces:
                body += piece
        assert body == b"".join(event(index) for index in range(8))
        assert await asyncio.wait_for(process.wait(), 5) == 0
        with pytest.raises(httpx.ConnectError):
            await client.get("/liveness")


async def test_the_first_request_after_the_start_is_served() -> None:
    async with (
        FakeWorker() as worker,
        gateway_process("--worker-urls", worker.url) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=10) as client,
    ):
        assert (await client.post(CHAT, content=chat_body())).status_code == 200


async def test_while_it_settles_an_idle_gateway_serves_though_it_is_not_ready() -> None:
    async with (
        FakeWorker() as worker,
        gateway_process("--worker-urls", worker.url, "--shutdown-settle-s", "1") as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
    ):
        await until_ready(client)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            while (await client.get("/readiness")).status_code != 503:
                await asyncio.sleep(0.02)
        assert (await client.post(CHAT, content=chat_body())).status_code == 200
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_after_the_grace_time_streams_are_ended() -> None:
    async def endless(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        while True:
            await reply.chunk(event("x"))
            await asyncio.sleep(0.05)

    async with (
        FakeWorker(endless) as worker,
        gateway_process("--worker-urls", worker.url, "--shutdown-grace-s", "0.5") as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
    ):
        await until_ready(client)
        async with client.stream("POST", CHAT, content=chat_body(stream=True)) as answer:
            process.send_signal(signal.SIGINT)
            body = b"".join([piece async for piece in answer.aiter_raw()])
        assert b'"code":"shutting_down"' in body.split(b"\n\n")[-2]
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_a_second_signal_ends_it_now() -> None:
    async with (
        FakeWorker(slow) as worker,
        gateway_process("--worker-urls", worker.url) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
    ):
        await until_ready(client)
        async with client.stream("POST", CHAT, content=chat_body(stream=True)):
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_access_log_is_one_line_a_request() -> None:
    async with (
        FakeWorker() as worker,
        gateway_process("--worker-urls", worker.url, "--access-log", "--policy", "random") as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
    ):
        await until_ready(client)
        for number in range(3):
            await client.post(CHAT, content=chat_body(), headers={"x-request-id": f"id-{number}"})
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
        lines = [line for line in log.decode().splitlines() if CHAT in line]
        assert len(lines) == 3
        assert all(f"id-{n} {CHAT} 200 127.0.0.1:{worker.port} random" in lines[n] for n in range(3))


async def test_a_broken_background_task_is_not_survived() -> None:
    gateway = build(GatewaySettings())
    failures: list[BaseException] = []

    async def broken() -> None:
        raise RuntimeError("broken")

    gateway.forwarder.sweep = broken  # type: ignore[method-assign]
    server = GatewayServer(uvicorn_config(gateway), gateway)
    async with gateway.running(failures.append):
        await until(lambda: failures, 2, "the failure is noticed")
    server.fail(failures[0])
    assert server.failed and server.should_exit


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--worker-urls", "ftp://x"], "ftp://x"),
        (["--policy", "nonsense"], "nonsense"),
        (["--retry-max-retries", "-1"], "--max-retries"),
        (["--health-check-endpoint", "health"], "--health-endpoint"),
        (["--cb-failure-threshold", "0"], "--cb-failure-threshold"),
        (["--port", "99999"], "--port"),
        (["--no-such-flag"], "no-such-flag"),
        (["--health-interval-s", "0"], "--health-interval-s"),
        (["--worker-urls", "http://h:1", "--ray-address", "auto"], "not both"),
    ],
)
def test_faults_of_the_user_are_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert says in lines[0] and lines[0].endswith(".")


def test_addresses_that_cannot_be_had_are_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("192.0.2.77", 0)):
            command = [sys.executable, "-m", "gateway", "--host", host, "--port", str(port)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_TIMEOUT_S)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"canopy gateway: Cannot listen on {host}:{port}: ")
            assert len(done.stderr.splitlines()) == 1
