"""Tuning guide: --schedule-policy lpm on prompts with shared prefixes."""

from __future__ import annotations

import random

import pytest

from tests.helpers.sim_bench import Served, SimBench, random_prompt
from worker.scheduler.constants import MATCHED_MAX_WAITING, MAX_OVERTAKEN

MAX_RUNNING = 16
NUM_GROUPS = 40
WAITING = 100


def grouped(policy: str) -> SimBench:
    """Prompts with one of 40 heads of 1,000 tokens, in random order, while 100 wait and the pool holds 20 heads."""
    bench = SimBench(schedule_policy=policy, max_total_tokens=20_000, max_running_requests=MAX_RUNNING)
    heads = [random_prompt(group, 1000) for group in range(NUM_GROUPS)]
    rng = random.Random(1)

    def submit(bench: SimBench) -> Served:
        own = random_prompt(1000 + len(bench.served), 100)
        return bench.submit(rng.choice(heads) + own, 16, ignore_eos=True)

    assert WAITING < MATCHED_MAX_WAITING
    bench.feed([submit] * 400, waiting=WAITING)
    return bench


def overtaken(bench: SimBench) -> int:
    """The most later arrivals that were answered before one request."""
    served = list(bench.served.values())
    return max(
        sum(later.times_s[0] < one.times_s[0] for later in served[index + 1 :]) for index, one in enumerate(served)
    )


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_prefix_policies_raise_the_hit_rate(policy: str) -> None:
    by_arrival, by_prefix = grouped("fcfs"), grouped(policy)
    # who shares a start with a request that is being computed waits for that step; others take the free places
    assert overtaken(by_arrival) <= MAX_RUNNING
    assert by_prefix.load.cache_hit_rate > by_arrival.load.cache_hit_rate + 0.2
    assert by_prefix.throughput > 1.3 * by_arrival.throughput
    # a turn comes after MAX_OVERTAKEN at the latest, but then the running ones may have to leave first
    assert 0 < overtaken(by_prefix) <= MAX_OVERTAKEN + MAX_RUNNING
