"""Whole workloads over simulated workers in virtual time: hit rates and TTFT against round robin and the bound.

Measured peers on this workload (mean / p99 TTFT without the first token's own step, hit rate): 15,000-token caches
22 / 113 ms, 0.876; 8,000-token caches 48 / 258 ms, 0.726.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from gateway.routing.cache_aware import CacheAware
from gateway.routing.policy import Policy
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prices import Prices
from gateway.routing.simple import RoundRobin
from tests.helpers.clock import FakeClock
from tests.helpers.gateway_sim import STEP_S, Result, SimulatedWorker, Simulation, sessions


def cache_aware(clock: FakeClock) -> Policy:
    return CacheAware(PrefixIndex(2**24), clock, Prices())


def round_robin(clock: FakeClock) -> Policy:
    return RoundRobin()


@cache
def run(policy: str, cache_tokens: int, *, report_capacity: bool = True) -> Result:
    make = {"cache_aware": cache_aware, "round_robin": round_robin}[policy]
    workers = [SimulatedWorker(cache_tokens) for _ in range(4)]
    simulation = Simulation(make, workers, report_capacity=report_capacity)
    return simulation.run(sessions(random.Random(7)))


def test_the_model_reproduces_measured_round_robin() -> None:
    result = run("round_robin", 60_000)
    assert result.hit_rate == pytest.approx(0.743, abs=0.02)
    assert result.bound == pytest.approx(0.903, abs=0.02)


def test_where_everything_fits_the_bound_is_reached() -> None:
    ours, theirs = run("cache_aware", 60_000), run("round_robin", 60_000)
    assert ours.hit_rate >= 0.98 * ours.bound
    assert ours.mean_ttft_s < 0.6 * theirs.mean_ttft_s


@pytest.mark.parametrize(
    ("cache_tokens", "hit_rate", "mean_s", "p99_s"), [(15_000, 0.87, 0.022, 0.125), (8_000, 0.70, 0.048, 0.258)]
)
def test_tight_caches(cache_tokens: int, hit_rate: float, mean_s: float, p99_s: float) -> None:
    """No worse than the better of the measured peers."""
    ours, theirs = run("cache_aware", cache_tokens), run("round_robin", cache_tokens)
    assert ours.hit_rate >= hit_rate > theirs.hit_rate
    assert ours.mean_ttft_s - STEP_S <= mean_s
    assert ours.ttft_quantile_s(0.99) - STEP_S <= p99_s
    assert ours.spread < 1.6


def test_predictions_are_close() -> None:
    for cache_tokens in (60_000, 15_000):
        result = run("cache_aware", cache_tokens)
        prompt_tokens = sum(worker.prompt_tokens for worker in result.workers)
        assert result.error_tokens < 0.04 * prompt_tokens


def test_unknown_capacities_are_survived() -> None:
    """Workers of other makers do not tell their pool's size; answers' cached_tokens must do."""
    blind, theirs = run("cache_aware", 15_000, report_capacity=False), run("round_robin", 15_000)
    assert blind.hit_rate > 0.78
    assert blind.mean_ttft_s < 0.6 * theirs.mean_ttft_s


def test_a_new_worker_gets_work() -> None:
    """Under load, caches large: the fifth worker joins halfway and gets most of a fair share."""
    simulation = Simulation(cache_aware, [SimulatedWorker(60_000) for _ in range(4)])
    new, before = SimulatedWorker(60_000), []

    def join() -> None:
        before.append(sum(worker.requests for worker in simulation.result.workers))
        simulation.add_worker(new)

    simulation.at(10.0, join)
    result = simulation.run(sessions(random.Random(7), rate_per_s=40, duration_s=25))
    after = sum(worker.requests for worker in result.workers) - before[0]
    assert new.requests > 0.5 * after / 5


def test_a_slow_worker_does_not_draw_more() -> None:
    workers = [SimulatedWorker(30_000, speed=2_000), *(SimulatedWorker(30_000) for _ in range(3))]
    result = Simulation(cache_aware, workers).run(sessions(random.Random(7), rate_per_s=16, duration_s=20))
    slow, *fast = result.workers
    assert slow.requests < min(worker.requests for worker in fast)


def test_a_system_prompt_shared_by_everybody_balances() -> None:
    """One application: every request begins with the same 8,000 characters."""
    workers = [SimulatedWorker(60_000) for _ in range(4)]
    arrivals = sessions(random.Random(7), apps=1, rate_per_s=48, duration_s=15)
    result = Simulation(cache_aware, workers).run(arrivals)
    assert result.spread < 1.2
    assert result.work_spread < 1.3
    assert result.hit_rate > 0.95 * result.bound
