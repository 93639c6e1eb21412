"""Ranks from the request field `priority`, and what they do to the queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.builders import SchedulerBench, make_settings
from worker.scheduler.priority import PriorityRules

PRIORITY: dict[str, Any] = {"enable_priority_scheduling": True}


def rules(**settings: Any) -> PriorityRules:
    return PriorityRules.of(make_settings(**settings))


def test_higher_values_are_more_urgent_unless_turned_round() -> None:
    assert rules().rank(7) < rules().rank(3)
    assert rules(schedule_low_priority_values_first=True).rank(7) > rules(schedule_low_priority_values_first=True).rank(
        3
    )


@pytest.mark.parametrize("low_first", [False, True])
def test_no_value_is_the_least_urgent_unless_there_is_a_default(low_first: bool) -> None:
    without = rules(schedule_low_priority_values_first=low_first)
    assert without.rank(None) >= max(without.rank(-(2**31)), without.rank(2**31 - 1))
    given = rules(schedule_low_priority_values_first=low_first, default_priority_value=4)
    assert given.rank(None) == given.rank(4)


@pytest.mark.parametrize(
    ("settings", "scheduled", "threshold"),
    [
        ({}, False, None),
        ({"enable_priority_scheduling": True}, True, 10),
        ({"schedule_policy": "priority"}, True, 10),
        ({"enable_priority_scheduling": True, "schedule_policy": "lof"}, True, 10),
        ({"enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": 3}, True, 3),
        ({"enable_priority_scheduling": True, "disable_priority_preemption": True}, True, None),
    ],
)
def test_what_the_settings_switch_on(settings: dict[str, Any], scheduled: bool, threshold: int | None) -> None:
    got = rules(**settings)
    assert (got.scheduled, got.preemption_threshold) == (scheduled, threshold)


def admission_order(bench: SchedulerBench, priorities: list[int | None], **sampling: Any) -> list[str]:
    """In which order requests with these priorities start on a replica that runs one at a time."""
    for number, priority in enumerate(priorities):
        options = {"max_new_tokens": 3 + number, "ignore_eos": True, **sampling}
        bench.submit([number + 1, 2, 3], priority=priority, **options)
    bench.run_until_idle()
    prompts = [int(batch.prefill_ids[0]) - 1 for batch in bench.runner.batches if len(batch.prefill_ids)]
    return [f"r{number}" for number in prompts]


def alone(**settings: Any) -> SchedulerBench:
    return SchedulerBench({"max_rows": 1}, **settings)


def test_urgent_requests_start_first_then_by_arrival() -> None:
    order = admission_order(alone(**PRIORITY), [0, 5, None, 5, -3])
    assert order == ["r1", "r3", "r0", "r4", "r2"]
    order = admission_order(alone(**PRIORITY, schedule_low_priority_values_first=True), [0, 5, None, 5, -3])
    assert order == ["r4", "r0", "r1", "r3", "r2"]


def test_with_lof_the_longest_output_first_within_a_priority() -> None:
    assert admission_order(alone(**PRIORITY, schedule_policy="lof"), [0, 5, 0, 5]) == ["r3", "r1", "r2", "r0"]


def test_priorities_are_ignored_unless_switched_on() -> None:
    assert admission_order(alone(), [0, 5, None, -3]) == ["r0", "r1", "r2", "r3"]


def test_a_full_queue_drops_its_least_urgent_newest_request_for_a_more_urgent_one() -> None:
    bench = alone(**PRIORITY, max_queued_requests=3, disable_priority_preemption=True)
    bench.submit([1, 2], priority=0, max_new_tokens=4)
    bench.step()
    old, new, urgent = (bench.submit([1, 2], priority=value, max_new_tokens=4) for value in (1, 1, 2))
    more = bench.submit([1, 2], priority=3, max_new_tokens=4)
    equal = bench.submit([1, 2], priority=1, max_new_tokens=4)
    bench.step()
    assert (bench.finish(new).kind, bench.finish(new).status) == ("abort", 503)
    assert bench.finish(new).message == "The request queue is full, and a more urgent request took this one's place."
    assert (bench.finish(equal).status, bench.finish(equal).message) == (503, "The request queue is full.")
    bench.run_until_idle()
    assert {bench.finish(rid).kind for rid in (old, urgent, more)} <= {"length", "stop"}


def test_a_full_queue_never_drops_who_has_begun_to_answer() -> None:
    bench = SchedulerBench({"max_rows": 1}, **PRIORITY, max_queued_requests=1)
    begun = bench.submit([1, 2], priority=0, max_new_tokens=20, ignore_eos=True)
    bench.step(3)
    bench.submit([1, 2], priority=50, max_new_tokens=20, ignore_eos=True)
    bench.step()  # preempts
    refused = bench.submit([1, 2], priority=60, max_new_tokens=4)
    bench.run_until_idle()
    assert bench.finish(refused).status == 503
    assert bench.tokens(begun) == bench.expected(begun)


def test_without_priorities_a_full_queue_refuses_the_new_one() -> None:
    bench = alone(max_queued_requests=1)
    bench.submit([1, 2], max_new_tokens=4)
    bench.step()
    waiting = bench.submit([1, 2], priority=0, max_new_tokens=4)
    refused = bench.submit([1, 2], priority=100, max_new_tokens=4)
    bench.run_until_idle()
    assert bench.finish(refused).status == 503
    assert bench.finish(waiting).kind != "abort"
