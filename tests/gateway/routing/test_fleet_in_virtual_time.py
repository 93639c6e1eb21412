"""Whole workloads over simulated workers in virtual time: hit rates and TTFT against round robin, the published rule of
SGLang's router, and bounds."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.router_model import WorkerModel
from benchmarks.router_virtual import FirstOwnerTree, LoadBoundedOracle, Result, Simulation
from benchmarks.router_workloads import Session, Turn, Workload, block_text, synthetic
from common.clock import Clock
from gateway.routing.cache_aware import CacheAware
from gateway.routing.policy import Policy
from gateway.routing.prefix_knowledge import PrefixKnowledge
from gateway.routing.prices import Prices
from gateway.routing.simple import LeastLoad, RoundRobin


def cache_aware(clock: Clock, simulation: Simulation) -> Policy:
    prices = Prices()
    return CacheAware(PrefixKnowledge(2**24, prices), clock, random.Random(1), prices)


MAKERS = {
    "cache_aware": cache_aware,
    "least_load": lambda clock, simulation: LeastLoad(),
    "round_robin": lambda clock, simulation: RoundRobin(),
    "first_owner": lambda clock, simulation: FirstOwnerTree(),
    "oracle": lambda clock, simulation: LoadBoundedOracle(simulation),
}


def workers_of(count: int, cache_tokens: int) -> list[WorkerModel]:
    return [WorkerModel(cache_tokens // 16) for _ in range(count)]


@cache
def run(policy: str, cache_tokens: int, *, report_capacity: bool = True) -> Result:
    simulation = Simulation(MAKERS[policy], workers_of(4, cache_tokens), report_capacity=report_capacity)
    return simulation.run(synthetic(1))


def test_the_model_reproduces_measured_round_robin() -> None:
    result = run("round_robin", 60_000)
    assert result.hit_rate == pytest.approx(0.743, abs=0.02)
    assert result.bound == pytest.approx(0.903, abs=0.02)


def test_where_everything_fits_the_bound_is_reached() -> None:
    ours, theirs = run("cache_aware", 60_000), run("first_owner", 60_000)
    assert ours.hit_rate >= 0.99 * ours.bound
    assert ours.mean_ttft_s < 1.1 * theirs.mean_ttft_s
    assert ours.ttft_quantile_s(0.99) < 1.05 * theirs.ttft_quantile_s(0.99)


def test_tight_caches() -> None:
    ours, theirs, oracle = (run(policy, 15_000) for policy in ("cache_aware", "first_owner", "oracle"))
    assert ours.mean_ttft_s < 0.95 * theirs.mean_ttft_s
    assert ours.ttft_quantile_s(0.99) < 0.9 * theirs.ttft_quantile_s(0.99)
    assert ours.hit_rate > 0.98 * oracle.hit_rate


def test_starved_caches() -> None:
    ours, theirs, oracle = (run(policy, 8_000) for policy in ("cache_aware", "first_owner", "oracle"))
    assert ours.mean_ttft_s < 0.85 * theirs.mean_ttft_s
    assert ours.ttft_quantile_s(0.99) < 0.7 * theirs.ttft_quantile_s(0.99)
    assert ours.hit_rate > 0.95 * oracle.hit_rate
    assert ours.spread < 1.6


@pytest.mark.parametrize(("cache_tokens", "error"), [(60_000, 0.02), (15_000, 0.02), (8_000, 0.05)])
def test_predictions_are_close(cache_tokens: int, error: float) -> None:
    assert run("cache_aware", cache_tokens).error < error


def test_unknown_capacities_are_survived() -> None:
    """Workers of other makers do not tell their pool's size; answers' cached_tokens must do."""
    blind, theirs = run("cache_aware", 15_000, report_capacity=False), run("round_robin", 15_000)
    assert blind.hit_rate > 0.78
    assert blind.mean_ttft_s < 0.6 * theirs.mean_ttft_s


def test_a_new_worker_gets_work() -> None:
    """Under load, caches large: the fifth worker joins halfway and gets most of a fair share."""
    simulation = Simulation(cache_aware, workers_of(4, 60_000))
    new, before = WorkerModel(60_000 // 16), []

    def join() -> None:
        before.append(sum(worker.requests for worker in simulation.result.workers))
        simulation.add_worker(new)

    simulation.timeline.at(10.0, join)
    result = simulation.run(synthetic(7, rate_per_s=40, duration_s=25))
    after = sum(worker.requests for worker in result.workers) - before[0]
    assert new.requests > 0.5 * after / 5


def test_a_slow_worker_does_not_draw_more() -> None:
    workers = [WorkerModel(30_000 // 16, speed=2_000), *workers_of(3, 30_000)]
    result = Simulation(cache_aware, workers).run(synthetic(7, rate_per_s=16, duration_s=20))
    slow, *fast = result.workers
    assert slow.requests < 0.5 * sum(worker.requests for worker in fast) / 3
    assert slow.prefilled_tokens < 0.3 * sum(worker.prefilled_tokens for worker in fast) / 3


def test_bursts_are_taken_no_worse_than_by_counting_requests() -> None:
    """Three seconds of many sessions, three of none, and so on."""
    steady = synthetic(5, rate_per_s=40, duration_s=12)
    bursts = [replace(one, arrival_s=one.arrival_s + 3 * (one.arrival_s // 3)) for one in steady.sessions]
    workload = replace(steady, sessions=tuple(bursts))
    ours, theirs = (
        Simulation(MAKERS[policy], workers_of(4, 60_000)).run(workload) for policy in ("cache_aware", "least_load")
    )
    assert ours.ttft_quantile_s(0.99) <= theirs.ttft_quantile_s(0.99)
    assert ours.mean_ttft_s < 0.5 * theirs.mean_ttft_s


def test_a_system_prompt_shared_by_everybody_balances() -> None:
    """One application: every request begins with the same 8,000 characters."""
    result = Simulation(cache_aware, workers_of(4, 60_000)).run(synthetic(7, apps=1, rate_per_s=48, duration_s=15))
    assert result.spread < 1.2
    assert result.work_spread < 1.3
    assert result.hit_rate > 0.95 * result.bound


@pytest.mark.parametrize(("workers", "cache_blocks"), [(4, 300), (4, None), (8, None)])
def test_block_0_shared_by_all_as_in_the_mooncake_trace(workers: int, cache_blocks: int | None) -> None:
    """Long prompts that all begin with the same block, half of them continuing an earlier one."""
    rng = random.Random(3)
    chats: list[list[int]] = []
    sessions, fresh = [], iter(range(1, 10**6))
    for number in range(2000):
        chat = rng.choice(chats[-80:]) if chats and rng.random() < 0.4 else [0]
        chat = chat + [next(fresh) for _ in range(rng.randint(4, 24))]
        chats.append(chat)
        sessions.append(Session(0.08 * number, "", (Turn("".join(map(block_text, chat)), 100),)))
    workload = Workload("mooncake-like", tuple(sessions), block_chars=256, block_tokens=512)

    def result_of(policy: str) -> Result:
        models = [WorkerModel(cache_blocks, block_chars=256, block_tokens=512) for _ in range(workers)]
        return Simulation(MAKERS[policy], models).run(workload)

    ours, oracle, theirs = (result_of(policy) for policy in ("cache_aware", "oracle", "round_robin"))
    assert ours.work_spread < 1.2
    assert theirs.hit_rate < ours.hit_rate
    assert ours.hit_rate > 0.9 * oracle.hit_rate
    assert ours.mean_ttft_s < 1.1 * oracle.mean_ttft_s
