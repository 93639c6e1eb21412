"""Tuning guide: memory for the KV pool, the cap on running requests, replicas, and a queue that is kept full."""

from __future__ import annotations

import pytest

from common.errors import UserError
from tests.helpers.sim_bench import Served, SimBench, random_prompt


def max_running(bench: SimBench) -> int:
    return max(moment.running for moment in bench.moments)


def load(bench: SimBench, num_requests: int, prompt_tokens: int, max_new_tokens: int) -> SimBench:
    """All at once, to the end."""
    for seed in range(num_requests):
        bench.submit(random_prompt(seed, prompt_tokens), max_new_tokens, ignore_eos=True)
    bench.finish()
    return bench


def test_a_larger_memory_fraction_lets_more_requests_run() -> None:
    small, large = (load(SimBench(mem_fraction_static=fraction), 80, 4000, 100) for fraction in (0.2, 0.3))
    assert large.runner.info.num_pages > 1.8 * small.runner.info.num_pages
    assert large.runner.info.available_memory_bytes < small.runner.info.available_memory_bytes - 10 * 2**30
    assert max_running(large) > 1.8 * max_running(small)
    assert large.throughput > small.throughput


def test_a_smaller_memory_fraction_leaves_memory_for_steps() -> None:
    infos = [SimBench(mem_fraction_static=fraction).runner.info for fraction in (None, 0.8, 0.7)]
    left_gib = [info.available_memory_bytes / 2**30 for info in infos]
    pool_tokens = [info.num_pages * info.page_size for info in infos]
    assert left_gib == pytest.approx([12, 27, 41], abs=0.5)
    assert pool_tokens == pytest.approx([911_000, 790_000, 676_000], rel=0.01)


@pytest.mark.parametrize(("fraction", "message"), [(0.1, "The weights take"), (0.995, "too little of the simulated")])
def test_a_fraction_that_cannot_work_is_refused(fraction: float, message: str) -> None:
    with pytest.raises(UserError, match=f"{message}.*--mem-fraction-static"):
        SimBench(mem_fraction_static=fraction)


def test_max_running_requests_caps_them() -> None:
    few, many = (load(SimBench(max_running_requests=limit), 128, 100, 100) for limit in (16, 64))
    assert (max_running(few), max_running(many)) == (16, 64)
    assert many.throughput > 1.5 * few.throughput
    slowest_few, slowest_many = (max(max(s.gaps_s) for s in bench.served.values()) for bench in (few, many))
    assert slowest_few < slowest_many


def test_two_replicas_serve_twice_as_fast_as_one() -> None:
    one = SimBench(max_running_requests=64)
    two = [SimBench(max_running_requests=64) for _ in range(2)]
    for seed in range(256):
        for bench in (one, two[seed % 2]):
            bench.submit(random_prompt(seed, 200), 128, ignore_eos=True)
    for bench in (one, *two):
        bench.finish()
    assert max(bench.clock.now_s() for bench in two) < one.clock.now_s() / 1.9


def test_a_client_that_leaves_the_queue_empty_wastes_the_device() -> None:
    def submit(bench: SimBench) -> Served:
        return bench.submit(random_prompt(len(bench.served), 200), 100, ignore_eos=True)

    kept_full, too_slow = SimBench(max_running_requests=64), SimBench(max_running_requests=64)
    kept_full.feed([submit] * 300, waiting=100)
    for _ in range(300):  # a client with 16 connections
        submit(too_slow)
        while too_slow.load.num_running_reqs + too_slow.load.num_waiting_reqs >= 16:
            too_slow.step()
    too_slow.finish()
    assert not too_slow.moments[-1].waiting and len(too_slow.queued()) < 0.1 * len(too_slow.moments)
    assert too_slow.throughput < 0.6 * kept_full.throughput
