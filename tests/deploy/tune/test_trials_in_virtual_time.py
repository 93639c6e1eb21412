"""From bad settings to nearly the best of a grid within six experiments: the real scheduler on the simulated
accelerator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
import pytest

from deploy.tune.trials.decision import Rules
from deploy.tune.trials.journal import Journal
from deploy.tune.trials.loop import Experimenter, Result
from tests.helpers.sim_bench import h200, random_prompt
from tests.helpers.virtual_laboratory import GIB, Submit, VirtualLaboratory
from worker.engine.sim.profile import SimProfile

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

EXPERIMENTS = 6
SEARCHED_S = 20.0  # a combination of the grid
MEASURED_S = 60.0  # the winner, and what experiments lead to
MEMORY_GB = 28  # 15 of them weights: a pool that 100 requests fill
NUM_GROUPS = 30

GRID = {
    "schedule_conservativeness": (0.1, 0.3, 1.0),
    "max_running_requests": (32, 96, 512),
    "mem_fraction_static": (0.7, 0.77),  # the higher one leaves 5.5 GB free
    "chunked_prefill_size": (2048, 8192),
    "cuda_graph_max_bs": (512,),
}
PREFIX_GRID = GRID | {"schedule_conservativeness": (0.3, 1.0), "schedule_policy": ("fcfs", "lpm")}

Settings = dict[str, Any]


def requests(make: Callable[[int, random.Random], tuple[list[int], dict[str, Any]]]) -> Iterator[Submit]:
    """Endless; `make` gives prompt and parameters of each."""
    rng = random.Random(1)
    for number in itertools.count():
        prompt, parameters = make(number, rng)
        yield lambda bench, p=prompt, q=parameters: bench.submit(p, **q)  # type: ignore[misc]


def chats() -> Iterator[Submit]:
    """They ask for up to 2,048 tokens and end by themselves after 32 to 256."""
    return requests(lambda number, rng: (random_prompt(number, rng.randint(100, 900)), {"max_new_tokens": 2048}))


def long_answers() -> Iterator[Submit]:
    """Short prompts, and all of 200 to 400 tokens."""
    return requests(
        lambda number, rng: (
            random_prompt(number, rng.randint(64, 256)),
            {"max_new_tokens": rng.randint(200, 400), "ignore_eos": True},
        )
    )


def shared_prefixes() -> Iterator[Submit]:
    """Heads of 2,000 tokens, more of them than the pool holds beside running requests."""
    heads = [random_prompt(10**6 + group, 2000) for group in range(NUM_GROUPS)]
    return requests(
        lambda number, rng: (
            rng.choice(heads) + random_prompt(number, 100),
            {"max_new_tokens": 64, "ignore_eos": True},
        )
    )


WORKLOADS: dict[str, tuple[Callable[[], Iterator[Submit]], tuple[int, int] | None, dict[str, tuple[Any, ...]]]] = {
    "chats": (chats, (32, 256), GRID),
    "long answers": (long_answers, None, GRID),
    "shared prefixes": (shared_prefixes, None, PREFIX_GRID),
}


def profile(answer_tokens: tuple[int, int] | None) -> SimProfile:
    """The H200's speed with less memory, so that a full pool is cheap to simulate."""
    whole = h200(answer_tokens=answer_tokens)
    memory = msgspec.structs.replace(
        whole.memory, total_bytes=MEMORY_GB * GIB, free_bytes=MEMORY_GB * GIB - whole.memory.workspace_bytes // 2
    )
    return msgspec.structs.replace(whole, memory=memory)


def laboratory(workload: str, settings: Settings) -> VirtualLaboratory:
    """One replica under the workload."""
    traffic, answer_tokens, _ = WORKLOADS[workload]
    return VirtualLaboratory(profile(answer_tokens), settings, traffic())


@cache
def best_of_grid(workload: str) -> tuple[float, str]:
    """Tokens a second of the best combination, and which one it is."""
    grid = WORKLOADS[workload][2]
    results = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        results.append((throughput(workload, settings, SEARCHED_S), settings))
    winner = max(results, key=lambda result: result[0])[1]
    return throughput(workload, winner), str(winner)  # again: the highest of many short runs had luck too


def throughput(workload: str, settings: Settings, seconds: float = MEASURED_S) -> float:
    """Tokens a second in steady state."""
    return laboratory(workload, settings).throughput(seconds)


def tuned(workload: str, settings: Settings) -> tuple[Result, Settings]:
    """What experiments make of the settings."""
    found = laboratory(workload, settings)
    rules = Rules(max_windows=12)
    result = Experimenter(found, Journal(None), model="m", rules=rules, limit=EXPERIMENTS, tell=print).run()
    return result, found.settings


@pytest.mark.parametrize(
    ("workload", "bad"),
    [
        ("chats", {"schedule_conservativeness": 2.0, "max_running_requests": 16, "mem_fraction_static": 0.77}),
        ("chats", {"mem_fraction_static": 0.6, "chunked_prefill_size": 512}),
        ("long answers", {"max_running_requests": 24, "cuda_graph_max_bs": 8, "mem_fraction_static": 0.62}),
        ("long answers", {"schedule_conservativeness": 1.6, "mem_fraction_static": 0.6, "cuda_graph_max_bs": 16}),
        ("shared prefixes", {"max_running_requests": 12, "mem_fraction_static": 0.77}),
        (
            "shared prefixes",
            {"schedule_conservativeness": 2.0, "mem_fraction_static": 0.65, "chunked_prefill_size": 1024},
        ),
    ],
)
def test_bad_settings_become_nearly_the_best_of_a_grid(workload: str, bad: Settings) -> None:
    before = throughput(workload, bad)
    result, settings = tuned(workload, bad)
    after = throughput(workload, settings)
    best, at = best_of_grid(workload)
    print(
        f"\n| {workload} | {bad} | {before / best:.2f} | {after / best:.2f} | {len(result.entries)} experiments, "
        f"{sum(entry.outcome == 'kept' for entry in result.entries)} kept: {result.kept} | {best:.0f} tokens/s at {at}"
    )
    assert before < 0.9 * best  # else there is nothing to find
    assert len(result.entries) <= EXPERIMENTS
    assert after >= 0.95 * best


def test_good_settings_stay() -> None:
    good = {"schedule_conservativeness": 0.3, "mem_fraction_static": 0.77, "cuda_graph_max_bs": 512}
    before = throughput("chats", good)
    result, settings = tuned("chats", good)
    after = throughput("chats", settings)
    print(f"\ngood settings: {result.kept}, {after / before:.3f} times the tokens/s")
    assert after >= 0.98 * before
