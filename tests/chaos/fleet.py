"""A gateway process and worker processes, and what can happen to a worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from common.process import free_port

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0
GATEWAY_FLAGS = (
    *("--policy", "cache_aware", "--health-interval-s", "0.5", "--health-timeout-s", "1", "--connect-timeout-s", "1"),
    *("--first-byte-timeout-s", "4", "--idle-timeout-s", "3", "--total-timeout-s", "8"),
    *("--cb-failure-threshold", "5", "--cb-timeout-duration-s", "2", "--log-level", "error"),
)
DEADLINE_S = 12.0  # the total time-out, and what a sweep and a very busy machine may add


class Process:
    """A child that is surely gone at the end."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self.child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )

    async def kill(self) -> None:
        """SIGKILL, also if it is stopped."""
        if self.child is not None and self.child.returncode is None:
            self.child.kill()
        if self.child is not None:
            await self.child.communicate()
        self.child = None

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        os.kill(self.child.pid, number)


class Worker:
    """One address, at which one worker process after the other serves."""

    def __init__(self, port: int, client: httpx.AsyncClient) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process = Process("-m", "tests.helpers.chaos_worker", "--port", str(port))
        self._client = client

    async def start(self) -> None:
        """Start a process; returns when it serves."""
        await self._process.start()
        child = self._process.child
        assert child is not None and child.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            assert await child.stdout.readline(), "the worker did not start"

    async def kill(self) -> None:
        await self._process.kill()

    def stop(self) -> None:
        """Hang: its kernel goes on accepting, nobody answers."""
        self._process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.signal(signal.SIGCONT)

    async def set(self, mode: str, *, hold: bool = False) -> None:
        """See ChaosWorker."""
        (await self._client.post(f"{self.url}/chaos", json={"mode": mode, "hold": hold})).raise_for_status()

    async def active(self) -> int:
        """Requests it is answering, by its own count."""
        return int((await self._client.get(f"{self.url}/chaos")).json()["active"])


class Fleet:
    """Workers behind one gateway."""

    def __init__(self, workers: Sequence[Worker], port: int, client: httpx.AsyncClient) -> None:
        self.workers = workers
        self.port = port
        self.client = client
        self.url = f"http://127.0.0.1:{port}"

    async def listed(self) -> list[dict[str, Any]]:
        """GET /workers, in the order of `workers`."""
        return list((await self.client.get(f"{self.url}/workers")).json()["workers"])

    async def samples(self) -> dict[str, float]:
        """The gateway's metrics by name and labels as written."""
        lines = (await self.client.get(f"{self.url}/metrics")).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("canopy_gateway_"))
        return {name.removeprefix("canopy_gateway_"): float(value) for name, value in pairs}


@asynccontextmanager
async def running_fleet(number: int, *flags: str) -> AsyncIterator[Fleet]:
    """`number` workers and a gateway, all ready; all gone afterwards."""
    chosen: set[int] = set()
    while len(chosen) <= number:
        chosen.add(free_port())
    ports = list(chosen)
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        workers = [Worker(port, client) for port in ports[1:]]
        gateway = Process(
            *("-m", "gateway", "--port", str(ports[0]), *GATEWAY_FLAGS, *flags),
            *("--worker-urls", *(worker.url for worker in workers)),
        )
        fleet = Fleet(workers, ports[0], client)
        try:
            await asyncio.gather(gateway.start(), *(worker.start() for worker in workers))
            await until_all_ready(fleet)
            yield fleet
        finally:
            await asyncio.gather(gateway.kill(), *(worker.kill() for worker in workers))


async def until_all_ready(fleet: Fleet) -> None:
    """Wait until every worker is in service."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                if all(worker["state"] == "ready" for worker in await fleet.listed()):
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            await asyncio.sleep(0.05)


async def until_idle(fleet: Fleet, timeout_s: float) -> None:
    """Wait until the gateway has nothing in flight."""
    async with asyncio.timeout(timeout_s):
        while (await fleet.samples())["requests_in_flight"]:
            await asyncio.sleep(0.05)


def as_json(data: bytes) -> Any:
    """JSON, or None."""
    try:
        return json.loads(data)
    except ValueError:
        return None
