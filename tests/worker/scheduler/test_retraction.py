"""Who is retracted, what it does to the ratio, and that the last one ends with a clear message."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from tests.helpers.builders import SchedulerBench
from worker.scheduler.retraction import retraction_order


def test_fewest_outputs_go_first_then_longest_prompts_then_position() -> None:
    outputs = np.array([5, 2, 2, 9, 2])
    prompts = np.array([10, 10, 30, 50, 30])
    assert retraction_order(outputs, prompts).tolist() == [2, 4, 1, 0, 3]


def crowded(**runner: object) -> SchedulerBench:
    """Admits requests that do not fit together to their end, since it expects no further output of running ones."""
    return SchedulerBench({"num_pages": 60, **runner}, schedule_conservativeness=0.0)


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_retracted_request_comes_back_first_and_loses_no_token(
    overlaps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench = crowded(overlaps=overlaps)
    old = bench.submit([1] * 10, max_new_tokens=40, ignore_eos=True)
    bench.step(5)
    young = bench.submit([2] * 10, max_new_tokens=30, ignore_eos=True)
    bench.step()
    waiting = bench.submit([3] * 5, max_new_tokens=40, ignore_eos=True, seed=5)
    bench.step_until(lambda: bench.load().retracted_requests_total == 1)
    assert bench.load().num_running_reqs == 1
    assert [request.rid for request in bench.scheduler._waiting] == [young, waiting]
    bench.run_until_idle()
    for rid in (old, young, waiting):
        assert bench.tokens(rid) == bench.expected(rid)
    last = bench.told[young].last
    assert last is not None and last.num_retractions >= 1
    assert any("KV cache pool is full. Retract requests. #retracted_reqs: 1" in line for line in caplog.messages)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_under_constant_pressure_everyone_gets_all_tokens(page_size: int, mixed: bool, overlaps: bool) -> None:
    bench = SchedulerBench(
        {"num_pages": 96 // page_size, "page_size": page_size, "overlaps": overlaps, "max_rows": 12},
        enable_mixed_chunk=mixed,
        chunked_prefill_size=16,
    )
    for number in range(25):
        bench.submit([number % 2] * 6 + [number] * (number % 9), max_new_tokens=25 + number % 10, ignore_eos=True)
    for _ in range(300):
        bench.reserve_nothing()
        bench.step()
    bench.run_until_idle()
    assert bench.load().retracted_requests_total >= 2
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in bench.told)


def test_results_in_flight_are_handled_before_anyone_is_retracted() -> None:
    """When the long request needs its next page, the short one is done but for a result on its way: its pages count."""
    bench = SchedulerBench({"num_pages": 40, "overlaps": True})
    long = bench.submit([1] * 5, max_new_tokens=33, ignore_eos=True)
    bench.step(20)
    bench.reserve_nothing()
    short = bench.submit([2] * 5, max_new_tokens=6, ignore_eos=True)
    bench.step_until(lambda: len(bench.tokens(short)) == 5)
    assert bench.load().num_free_tokens + bench.load().num_evictable_tokens == 0
    bench.run_until_idle()
    assert (bench.load().retracted_requests_total, bench.load().aborted_requests_total) == (0, 0)
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in (long, short))


def test_the_ratio_becomes_what_those_who_stay_need() -> None:
    bench = crowded()
    bench.submit([1] * 10, max_new_tokens=40, ignore_eos=True)
    bench.step()
    bench.submit([2] * 11, max_new_tokens=30, ignore_eos=True)
    bench.step_until(lambda: bench.load().retracted_requests_total == 1)
    stayed = int(bench.scheduler._table.num_outputs[bench.scheduler._table.decoding][0]) - 1
    assert bench.load().new_token_ratio == pytest.approx((stayed + 20) / 41)


def test_a_prompt_in_chunks_yields_to_the_last_decode() -> None:
    bench = SchedulerBench({"num_pages": 60}, schedule_conservativeness=0.0, chunked_prefill_size=8)
    first = bench.submit([1] * 4, max_new_tokens=50, ignore_eos=True)
    bench.step(5)
    long = bench.submit(list(range(1, 46)) + [7], max_new_tokens=5, ignore_eos=True)
    bench.run_until_idle()
    assert bench.load().retracted_requests_total >= 1
    for rid in (first, long):
        assert bench.tokens(rid) == bench.expected(rid)


def test_the_last_request_that_cannot_fit_is_aborted_and_the_scheduler_lives_on() -> None:
    bench = SchedulerBench({"num_pages": 30})
    rid = bench.submit([1] * 10, max_new_tokens=15, ignore_eos=True)
    bench.step()
    stolen = bench.scheduler._pool.alloc(15)  # cannot happen otherwise: a request alone always fits
    for _ in range(20):
        bench.scheduler.step()
    reason = bench.finish(rid)
    assert (reason.kind, reason.status) == ("abort", 500)
    assert reason.message == (
        "Out of memory even after retracting all other requests: the KV pool of 30 tokens cannot hold this request of "
        "16 tokens."
    )
    bench.scheduler._pool.free(stolen)
    again = bench.submit([1] * 10, max_new_tokens=15, ignore_eos=True)
    bench.run_until_idle()
    assert bench.tokens(again) == bench.expected(again)


def test_by_priority_the_least_urgent_go_first() -> None:
    outputs, prompts = np.array([5, 2, 9, 2]), np.array([10, 10, 10, 30])
    assert retraction_order(outputs, prompts, np.array([0, 0, 7, 0])).tolist() == [2, 3, 1, 0]


@pytest.mark.parametrize("policy", ["length", "priority"])
def test_retraction_policy(policy: str) -> None:
    """The urgent request has fewer outputs, so by length it would go."""
    bench = SchedulerBench(
        {"num_pages": 60},
        schedule_conservativeness=0.0,
        enable_priority_scheduling=True,
        retraction_policy=policy,
        disable_priority_preemption=True,
    )
    low = bench.submit([1] * 10, priority=0, max_new_tokens=40, ignore_eos=True)
    bench.step(5)
    urgent = bench.submit([2] * 10, priority=50, max_new_tokens=30, ignore_eos=True)
    bench.step_until(lambda: bench.load().retracted_requests_total == 1)
    assert [request.rid for request in bench.scheduler._waiting] == [low if policy == "priority" else urgent]
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in (low, urgent))
