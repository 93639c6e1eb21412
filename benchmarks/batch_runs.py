"""One run of a batch file: by `canopy batch`, killed or not, or by a closed-loop client, and the fleet meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import orjson
import psutil

_SAMPLE_EVERY_S = 0.5
_IDLE_TIMEOUT_S = 120.0
_WARM_SHARE = 0.1  # of the answers, after which a run is steady
_LONGEST_DELAY_S = 1.0  # of a kill
_RETRACTIONS = re.compile(rb"^canopy_num_retracted_requests_total\{[^}]*\} (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment; tuples over its replicas."""

    answered: int
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    usage: tuple[float, ...]


@dataclass(slots=True)
class Run:
    """What a run came to. Tokens are those of the answers; `cpu_s` is of all processes on this machine."""

    name: str
    requests: int
    took_s: float = 0.0
    answered: int = 0
    repeated: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    cpu_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    @property
    def output_tok_s(self) -> float:
        """Over the whole run, start and tail included."""
        return self.output_tokens / self.took_s

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the prefix cache."""
        return self.cached_tokens / max(self.prompt_tokens, 1)

    @property
    def steady(self) -> list[Sample]:
        """From a tenth of the answers on, as long as there is more to send."""
        warm, end = self.requests * _WARM_SHARE, self.requests * 0.99
        found = [s for s in self.samples if warm <= s.answered < end - sum(s.running) - sum(s.waiting)]
        return found or self.samples

    def means(self) -> tuple[float, float, float, float]:
        """Of the steady part, a replica: running and waiting requests, token usage, and usage of the least used."""
        steady = self.steady
        return (
            fmean(fmean(s.running) for s in steady),
            fmean(fmean(s.waiting) for s in steady),
            fmean(fmean(s.usage) for s in steady),
            min(fmean(usages) for usages in zip(*(s.usage for s in steady), strict=True)),
        )


class Fleet:
    """The gateway that the runs go through, and its replicas' figures."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def fresh(self) -> None:
        """Wait until nothing runs, then empty all caches."""
        deadline_s = time.monotonic() + _IDLE_TIMEOUT_S
        while True:
            now = await self.sample(0)
            if not sum(now.running) + sum(now.waiting):
                async with self.session.post(f"{self.url}/flush_cache") as response:
                    if response.status == 200:
                        return
            if time.monotonic() > deadline_s:
                raise TimeoutError("the fleet does not come to rest")
            await asyncio.sleep(0.5)

    async def sample(self, answered: int) -> Sample:
        """The last load report of each replica."""
        async with self.session.get(f"{self.url}/v1/loads") as response:
            loads = orjson.loads(await response.read())["loads"]
        running, waiting, usage = (
            tuple(load[name] for load in loads) for name in ("num_running_reqs", "num_waiting_reqs", "token_usage")
        )
        return Sample(answered, running, waiting, usage)

    async def retractions(self) -> int:
        """Of all replicas, since their start."""
        async with self.session.get(f"{self.url}/engine_metrics") as response:
            return sum(int(float(number)) for number in _RETRACTIONS.findall(await response.read()))


async def closed_loop(fleet: Fleet, work: Path, out: Path, concurrency: int) -> Run:
    """So many requests in flight, in the order of the file."""
    _clear(out)
    run = Run(f"closed loop, {concurrency}", _count_lines(work))
    with work.open("rb") as source, out.open("ab", buffering=0) as sink:

        async def client() -> None:
            for line in source:
                request = orjson.loads(line)
                async with fleet.session.post(fleet.url + request["url"], json=request["body"]) as response:
                    body = await response.read()
                    if response.status != 200:
                        raise RuntimeError(f"status {response.status}: {body[:200]!r}")
                sink.write(orjson.dumps({"custom_id": request["custom_id"], "response": {"body": orjson.loads(body)}}))
                sink.write(b"\n")

        async def all_clients() -> None:
            async with asyncio.TaskGroup() as clients:
                for _ in range(concurrency):
                    clients.create_task(client())

        return await _observed(fleet, run, out, all_clients())


async def batch(
    fleet: Fleet, work: Path, out: Path, *, kills: int = 0, seed: int = 0, flags: tuple[str, ...] = ()
) -> Run:
    """`canopy batch`; its process is killed at so many random moments and started again."""
    _clear(out)
    requests = _count_lines(work)
    run = Run(f"canopy batch, {kills} kills" if kills else "canopy batch", requests)
    rng = random.Random(seed)
    moments = sorted(rng.randrange(requests) for _ in range(kills))
    command = ("-m", "deploy.cli", "batch", str(work), str(out), "--base-url", fleet.url, "--no-progress", *flags)

    async def all_lives() -> None:
        for moment in moments:
            process = await asyncio.create_subprocess_exec(sys.executable, *command)
            await _until_killed(process, out, moment, rng.uniform(0.0, _LONGEST_DELAY_S))
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        if await process.wait() != 0:
            raise RuntimeError(f"canopy batch ended with {process.returncode}")

    return await _observed(fleet, run, out, all_lives())


def _clear(out: Path) -> None:
    """An empty output that belongs to no batch."""
    out.write_bytes(b"")
    out.with_name(f"{out.name}.state").unlink(missing_ok=True)


async def _until_killed(process: asyncio.subprocess.Process, out: Path, lines: int, delay_s: float) -> None:
    """kill -9, a moment after the output has grown to so many lines."""
    counter = _LineCounter(out)
    while counter.count() < lines and process.returncode is None:
        await asyncio.sleep(0.02)
    await asyncio.sleep(delay_s)
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _observed(fleet: Fleet, run: Run, out: Path, work: Awaitable[None]) -> Run:
    await fleet.fresh()
    counter, retracted, cpu_s = _LineCounter(out), await fleet.retractions(), _cpu_s()

    async def watch() -> None:
        while True:
            run.samples.append(await fleet.sample(counter.count()))
            await asyncio.sleep(_SAMPLE_EVERY_S)

    began_s = time.monotonic()
    watcher = asyncio.create_task(watch())
    try:
        await work
    finally:
        watcher.cancel()
    run.took_s = time.monotonic() - began_s
    run.cpu_s = _cpu_s() - cpu_s
    run.retractions = await fleet.retractions() - retracted
    _read_answers(run, out)
    return run


def _read_answers(run: Run, out: Path) -> None:
    ids: Counter[str] = Counter()
    with out.open("rb") as file:
        for line in file:
            fields = orjson.loads(line)
            ids[fields["custom_id"]] += 1
            prompt, cached, output = _usage(fields["response"]["body"])
            run.prompt_tokens += prompt
            run.cached_tokens += cached
            run.output_tokens += output
    run.answered, run.repeated = len(ids), ids.total() - len(ids)


def _usage(body: dict[str, Any]) -> tuple[int, int, int]:
    """(prompt, cached, output) tokens of an answer."""
    if "meta_info" in body:
        meta = body["meta_info"]
        return meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]
    usage = body["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


class _LineCounter:
    """Counts the lines of a growing file, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._lines = 0

    def count(self) -> int:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        self._lines += text.count(b"\n")
        return self._lines


def _count_lines(path: Path) -> int:
    return _LineCounter(path).count()


def _cpu_s() -> float:
    """Of this process, its descendants, and those of them that have ended."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system
    return total
