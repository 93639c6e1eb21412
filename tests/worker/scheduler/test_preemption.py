"""Urgent requests take rows and pages from much less urgent ones, from as few as will do, and nobody loses a token."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.helpers.builders import SchedulerBench
from worker.log_lines import PrefillLine, parse


@pytest.fixture(params=[(o, m) for o in (False, True) for m in (False, True)], ids=str)
def mode(request: pytest.FixtureRequest) -> tuple[bool, bool]:
    return request.param  # type: ignore[no-any-return]


def make_bench(mode: tuple[bool, bool], runner: dict[str, Any], **settings: Any) -> SchedulerBench:
    overlaps, mixed = mode
    return SchedulerBench(
        {"overlaps": overlaps, **runner}, enable_mixed_chunk=mixed, enable_priority_scheduling=True, **settings
    )


def start(bench: SchedulerBench, first: int, priority: int | None, max_new_tokens: int = 20) -> str:
    rid = bench.submit([first, 2, 3], priority=priority, max_new_tokens=max_new_tokens, ignore_eos=True)
    bench.step(2)
    return rid


def running(bench: SchedulerBench) -> set[str]:
    return {request.rid for request in bench.scheduler._table.requests(bench.scheduler._table.used_rows())}


def test_an_urgent_request_takes_the_row_of_the_least_urgent_newest_one(
    mode: tuple[bool, bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = make_bench(mode, {"max_rows": 3})
    middle, old, new = (start(bench, n, priority) for n, priority in ((1, 5), (2, 0), (3, 0)))
    urgent = start(bench, 4, 11)
    assert running(bench) == {middle, old, urgent}
    assert "More urgent requests wait. Preempt requests. #preempted_reqs: 1" in caplog.text
    lines = [line for record in caplog.records if isinstance(line := parse(record.getMessage()), PrefillLine)]
    assert (lines[-1].new_seqs, lines[-1].running) == (1, 2)
    bench.run_until_idle()
    for rid in (middle, old, new, urgent):
        assert bench.tokens(rid) == bench.expected(rid)
    last = bench.told[new].last
    assert last is not None and last.num_retractions == 1


def test_a_difference_of_the_threshold_is_not_enough(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 1})
    old = start(bench, 1, 0)
    waits = start(bench, 2, 10)
    assert running(bench) == {old}
    bench.run_until_idle()
    assert bench.tokens(waits) == bench.expected(waits)


def test_the_threshold_can_be_set_and_preemption_switched_off(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 1}, priority_scheduling_preemption_threshold=3)
    start(bench, 1, 0)
    assert {start(bench, 2, 4)} == running(bench)
    bench = make_bench(mode, {"max_rows": 1}, disable_priority_preemption=True)
    old = start(bench, 1, 0)
    start(bench, 2, 1000)
    assert running(bench) == {old}


def test_low_values_first(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 1}, schedule_low_priority_values_first=True)
    start(bench, 1, 20)
    assert {start(bench, 2, 0)} == running(bench)


def test_whoever_names_no_priority_gives_way_to_whoever_does(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 1})
    start(bench, 1, None)
    assert {start(bench, 2, -100)} == running(bench)


def test_only_as_many_pages_as_are_needed_are_taken(mode: tuple[bool, bool]) -> None:
    """Four requests with 20 tokens in all each fill the pool but for a few pages; the urgent one needs one's part."""
    bench = make_bench(mode, {"num_pages": 100, "max_rows": 8}, schedule_conservativeness=10)
    others = [start(bench, n, 0, max_new_tokens=20) for n in range(4)]
    urgent = bench.submit([9] * 4, priority=50, max_new_tokens=20, ignore_eos=True)
    bench.step(2)
    assert running(bench) == {*others[:3], urgent}
    bench.run_until_idle()
    for rid in (*others, urgent):
        assert bench.tokens(rid) == bench.expected(rid)


def test_nobody_leaves_for_a_request_that_would_not_fit_even_then(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"num_pages": 100, "max_rows": 8}, schedule_conservativeness=10)
    middle = start(bench, 1, 45, max_new_tokens=40)
    low = start(bench, 2, 0, max_new_tokens=20)
    urgent = start(bench, 3, 50, max_new_tokens=80)
    assert running(bench) == {middle, low}
    bench.run_until_idle()
    assert bench.tokens(urgent) == bench.expected(urgent)
    assert bench.told[low].last is not None and bench.told[low].last.num_retractions == 0


def test_several_urgent_requests_in_one_step(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 3})
    low = [start(bench, n, 0) for n in range(3)]
    urgent = [bench.submit([n, 7], priority=50, max_new_tokens=5, ignore_eos=True) for n in range(3)]
    bench.step(2)
    assert running(bench) == set(urgent)
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in (*low, *urgent))


def test_an_urgent_arrival_is_tried_although_the_pool_was_full_before(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 2})
    low = [start(bench, n, 0) for n in range(2)]
    start(bench, 3, 5)  # waits, and marks the pool full
    bench.step(3)
    urgent = start(bench, 4, 50)
    assert running(bench) == {low[0], urgent}
