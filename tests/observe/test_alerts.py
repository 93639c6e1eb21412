"""Each alert fires on a real fleet to which just that happens. Durations in the rules are a twentieth of the real ones;
expressions and thresholds are the rules' own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from common.process import free_port
from tests.helpers.fake_worker import FakeWorker, Received, Reply
from tests.helpers.observed_fleet import MODEL, Clients, gateway, observed
from tests.helpers.prometheus import Prometheus, need, prometheus
from tests.helpers.replica_process import ReplicaProcess, replica
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = [pytest.mark.observe, pytest.mark.timeout(900)]
FASTER = 20
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules"
# Requests reserve next to nothing for their answers. The first replica is fast and has a pool that a burst overruns.
FLAGS = ("--device", "sim", "--schedule-conservativeness", "0.1")
SPEEDS, POOLS_TOKENS = ("2", "0.1"), (3000, 25600)
LONG_TOKENS = 100  # of answers to prompts that fill an eighth of the second pool


def random_text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(words))


class Watch:
    """Which alerts have fired so far."""

    def __init__(self, watcher: Prometheus) -> None:
        self._prometheus = watcher
        self.fired: dict[str, float] = {}  # seconds after the start
        self._start_s = time.monotonic()

    async def follow(self) -> None:
        while True:
            for name in await asyncio.to_thread(self._prometheus.alerts) - self.fired.keys():
                self.fired[name] = time.monotonic() - self._start_s
            await asyncio.sleep(0.5)

    async def until(self, *names: str, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.fired.keys() >= set(names):
                    await asyncio.sleep(0.2)
        assert self.fired.keys() >= set(names), (names, self.fired)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("prometheus")
    return save_tiny_chat_model(tmp_path_factory.mktemp("alerts") / MODEL, context_len=8192)


@pytest.fixture(scope="module")
def replicas(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ReplicaProcess]]:
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                replica(
                    model,
                    tmp_path_factory.mktemp("replica"),
                    *(*FLAGS, "--sim-speed", speed, "--max-total-tokens", str(tokens)),
                    wait=False,
                )
            )
            for speed, tokens in zip(SPEEDS, POOLS_TOKENS, strict=True)
        ]
        for process in started:
            process.wait_ready()
        yield started


@contextlib.asynccontextmanager
async def load(
    clients: Clients, texts: Iterator[str], *, tokens: int, number: int, spread: int = 1
) -> AsyncIterator[None]:
    """Clients that ask in the background of a block."""
    asking = asyncio.create_task(clients.load(texts, tokens=tokens, clients=number, spread=spread))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def failing(request: Received, reply: Reply) -> None:
    await reply.json({"error": {"message": "no"}}, status=500)


async def test_every_alert_fires_when_it_is_provoked(
    model: Path, replicas: list[ReplicaProcess], tmp_path: Path
) -> None:
    rng, expected = random.Random(1), set(alert_names())
    async with FakeWorker(failing, model=MODEL) as bad:
        with ExitStack() as stack:
            urls = [process.url for process in replicas]
            gate = ("--max-concurrent-requests", "64", "--queue-size", "500", "--log-level", "error")
            fronted = stack.enter_context(ExitStack())
            address = fronted.enter_context(gateway(urls, tmp_path, *gate))
            watcher = stack.enter_context(prometheus(observed(address, tmp_path / "p", faster=FASTER), tmp_path))
            watch = Watch(watcher)
            following = asyncio.create_task(watch.follow())
            try:
                await add_worker(address, bad.url)
                await provoke(watch, address, replicas, rng)
                await crash_loop(watch, address, model)
                for process in replicas:
                    process.signal(signal.SIGKILL)
                await bad.kill()
                async with Clients(address) as clients, load(clients, itertools.repeat("hi"), tokens=1, number=2):
                    await watch.until("CanopyNoReplicaReady", "CanopyErrors", within_s=60)
                fronted.close()
                await watch.until("CanopyGatewayDown", within_s=30)
            finally:
                following.cancel()
                print("seconds until each fired:", {name: round(s) for name, s in watch.fired.items()})
    assert watch.fired.keys() == expected


async def provoke(watch: Watch, address: str, replicas: list[ReplicaProcess], rng: random.Random) -> None:
    """Everything for which replicas must live."""
    shared = random_text(rng, 200)
    unlike = (random_text(rng, 20) for _ in itertools.count())
    async with Clients(address) as clients:
        async with load(clients, unlike, tokens=4, number=4):  # the bad worker fails what it gets
            await watch.until("CanopyBreakerOpen", within_s=200)
        await asyncio.gather(storm(watch, replicas[0], unlike), fill(watch, replicas[1], rng))
        async with load(clients, (f"{shared} {n}" for n in itertools.count()), tokens=4, number=4):
            await asyncio.sleep(40)  # a time of good hit rates, of which more than the last 30 s count
        async with load(clients, unlike, tokens=600, number=150):
            await watch.until("CanopyTtftBurnRate", "CanopyQueueAge", "CanopyHitRateDrop", within_s=200)
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client, asyncio.timeout(200):
            while "CanopyPredictionOff" not in watch.fired:  # caches are emptied behind the gateway's back
                text = random_text(rng, 400)
                for _ in range(2):
                    await clients.ask(text, tokens=1)
                    for process in replicas:
                        await client.post(f"{process.url}/flush_cache")


async def storm(watch: Watch, process: ReplicaProcess, texts: Iterator[str]) -> None:
    """Burst after burst of requests that outgrow the pool together. What a replica learns from retractions it forgets
    when it is idle in between."""
    async with Clients(process.url.removeprefix("http://")) as clients, asyncio.timeout(200):
        while "CanopyRetractionStorm" not in watch.fired:
            await asyncio.gather(*(clients.ask(next(texts), tokens=100) for _ in range(30)))


async def fill(watch: Watch, process: ReplicaProcess, rng: random.Random) -> None:
    """Long prompts with short answers, of which exactly eight fit."""
    async with Clients(process.url.removeprefix("http://")) as clients:
        await clients.ask(random_text(rng, 1000), tokens=1)
        around = clients.truth.prompt_tokens - 2000  # of the chat template; a word is two tokens
        words = (POOLS_TOKENS[1] // 8 - 16 - LONG_TOKENS - around) // 2
        texts = (random_text(rng, words) for _ in itertools.count())
        async with load(clients, texts, tokens=LONG_TOKENS, number=30, spread=60):
            await watch.until("CanopyKvPoolFull", within_s=200)


async def crash_loop(watch: Watch, address: str, model: Path) -> None:
    """A worker at a fixed address that is killed as soon as it has been scraped."""
    port = free_port()
    await add_worker(address, f"http://127.0.0.1:{port}")
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client, asyncio.timeout(200):
        while "CanopyCrashLoop" not in watch.fired:
            command = [sys.executable, "-m", "worker", "--model-path", str(model), "--port", str(port), *FLAGS]
            process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
            await until_answers(client, f"http://127.0.0.1:{port}/metrics")
            await asyncio.sleep(1.5)
            process.kill()
            await process.wait()


async def add_worker(address: str, url: str) -> None:
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        assert (await client.post(f"http://{address}/workers", json={"url": url})).status_code == 202


async def until_answers(client: httpx.AsyncClient, url: str) -> None:
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if (await client.get(url)).status_code == 200:
                return
        await asyncio.sleep(0.1)


def alert_names() -> Iterator[str]:
    for rule in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"][0]["rules"]:
        yield rule["alert"]
