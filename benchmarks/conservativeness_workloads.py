"""Workloads on which --schedule-conservativeness matters: more waits than the KV pool holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Random = np.random.Generator
TOKEN_IDS = (1000, 30_000)


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `output_tokens`: where its answer ends by itself; None: it ignores EOS and uses all it may."""

    prompt: list[int]
    max_new_tokens: int
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """`jobs(random)` are endless; `waiting` of them are kept in the queue, or, with `burst`, so many come at once each
    time that all before them are answered. `settings` are the worker's beside the size of the pool."""

    pool_tokens: int
    jobs: Callable[[Random], Iterator[Job]]
    waiting: int = 60
    burst: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


def _tokens(random: Random, count: int) -> list[int]:
    ids: list[int] = random.integers(*TOKEN_IDS, count).tolist()
    return ids


def _uniform(
    prompt: tuple[int, int], output: tuple[int, int], limit: int, *, ignore_eos: bool = False
) -> Callable[[Random], Iterator[Job]]:
    """Prompts and outputs of lengths from least to most; with `ignore_eos` the output is the limit."""

    def jobs(random: Random) -> Iterator[Job]:
        while True:
            length = int(random.integers(*output))
            ids = _tokens(random, int(random.integers(*prompt)))
            yield Job(ids, length if ignore_eos else limit, None if ignore_eos else min(length, limit))

    return jobs


_short = _uniform((100, 400), (30, 150), 2048)
_long = _uniform((100, 400), (500, 1500), 2048)


def _heavy_tail(random: Random) -> Iterator[Job]:
    """Pareto with index 1.2 from 60 tokens on: a median of 107, one in 100 above 2,700."""
    while True:
        length = int(60 * (1.0 + random.pareto(1.2)))
        yield Job(_tokens(random, int(random.integers(100, 500))), 4096, min(length, 4096))


def _mixed(random: Random) -> Iterator[Job]:
    """Of three requests two are short chats with a low limit, one is a report with a high one."""
    chats = _uniform((100, 600), (20, 250), 512)(random)
    reports = _uniform((300, 1500), (400, 1400), 4096)(random)
    while True:
        yield next(reports if random.random() < 1 / 3 else chats)


def _changing(random: Random) -> Iterator[Job]:
    """Short answers become long ones and short again, every 2,000 requests, all with one limit."""
    short, long = _short(random), _long(random)
    for number in itertools.count():
        yield next(long if random.random() < 0.5 - 0.5 * math.cos(2 * math.pi * number / 2000) else short)


def _sudden(random: Random) -> Iterator[Job]:
    """1,000 short answers, then 250 long ones, and again."""
    short, long = _short(random), _long(random)
    while True:
        yield from itertools.islice(short, 1000)
        yield from itertools.islice(long, 250)


def _shared(random: Random) -> Iterator[Job]:
    """Eight heads of 1,500 tokens, each with 50 to 150 of the request's own."""
    heads = [_tokens(random, 1500) for _ in range(8)]
    own = _uniform((50, 150), (100, 500), 1024)(random)
    while True:
        job = next(own)
        yield Job(heads[int(random.integers(8))] + job.prompt, job.max_new_tokens, job.output_tokens)


WORKLOADS: dict[str, Workload] = {
    "long answers": Workload(60_000, _uniform((100, 500), (600, 1400), 2048)),
    "limit far above": Workload(40_000, _uniform((100, 500), (40, 160), 4096)),
    "heavy tail": Workload(60_000, _heavy_tail),
    "mixed": Workload(60_000, _mixed),
    "bursts": Workload(40_000, _uniform((100, 500), (100, 600), 1024), burst=300),
    "changing mix": Workload(40_000, _changing),
    "long prompts": Workload(150_000, _uniform((3000, 9000), (50, 400), 1024), waiting=20),
    "shared prefixes": Workload(40_000, _shared, settings={"schedule_policy": "lpm"}),
    "small pool": Workload(10_000, _uniform((50, 250), (50, 300), 512)),
    "exact lengths": Workload(40_000, _uniform((50, 500), (200, 900), 0, ignore_eos=True)),
    "sudden changes": Workload(40_000, _sudden),
}
