"""--schedule-conservativeness auto: what it reserves, and what a scheduler with it does."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import SchedulerBench, make_request
from tests.helpers.clock import FakeClock
from worker.cache.pool import KvPool
from worker.cache.radix import RadixCache
from worker.log_lines import ConservativenessLine, parse
from worker.scheduler.forecast import ForecastReserve
from worker.scheduler.request import Request
from worker.scheduler.rows import RequestTable


class Replica:
    """A pool of pages of one token, and requests that run in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pool = KvPool(100_000, RadixCache(1))
        self.table = RequestTable(200, 10_000, 1)
        self.reserve = ForecastReserve(self.pool, self.table, self.clock, 10_000)

    def run(self, prompt: int, produced: int, limit: int, *, ignore_eos: bool = False) -> Request:
        request = make_request([1] * prompt, max_new_tokens=limit, ignore_eos=ignore_eos)
        row = self.table.acquire(request)
        self.table.set_pages(row, 0, self.pool.alloc(prompt + produced))
        self.table.seq_len[row], self.table.num_launched[row] = prompt + produced, produced
        self.table.decoding[row] = True
        return request

    def learn(self, limit: int, *lengths: int) -> None:
        for length in lengths:
            self.reserve.on_end(make_request([1], max_new_tokens=limit), length)


def test_nothing_runs_nothing_is_reserved() -> None:
    assert Replica().reserve.begin() == 0.0


def test_known_lengths_need_what_they_need_when_the_first_ends() -> None:
    """Two requests ignore EOS: after 10 more steps one leaves 110 tokens, and the other needs 40 more."""
    replica = Replica()
    replica.run(100, 40, 50, ignore_eos=True)
    replica.run(100, 0, 50, ignore_eos=True)
    # On average 20 are needed; nothing was learned yet, so there is some doubt, and the grid is no finer than 2 steps.
    assert 20 <= replica.reserve.begin() <= 24 * (1.0 + 3.0 * 0.15)
    single = Replica()
    single.run(100, 10, 50, ignore_eos=True)
    assert single.reserve.begin() == pytest.approx(40)  # never more than all it may produce


def test_learned_lengths_reserve_less_than_limits() -> None:
    replica = Replica()
    for _ in range(20):
        replica.run(100, 0, 4096)
    before = replica.reserve.begin()
    replica.learn(4096, *np.random.default_rng(0).integers(40, 160, 400).tolist())
    after = replica.reserve.begin()
    assert before > 20 * 1000
    assert 20 * 50 < after < 20 * 160
    assert replica.reserve.conservativeness == pytest.approx(after / (20 * 4096) / 0.7)


def test_a_retraction_reserves_more_and_time_under_load_less() -> None:
    replica = Replica()
    replica.learn(1000, *range(100, 500))
    for _ in range(20):
        replica.run(100, 10, 1000)
    at_first = replica.reserve.begin()
    replica.reserve.raise_after_retraction(0, 0, 0)
    raised = replica.reserve.begin()
    for _ in range(600):
        replica.clock.advance(1.0)
        replica.reserve.begin()
    assert replica.reserve.begin() < at_first < raised


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 99), st.integers(100, 6000), st.booleans()), max_size=20),
    st.lists(st.tuples(st.integers(1, 6000), st.integers(0, 6000)), max_size=40),
    st.tuples(st.integers(1, 300), st.integers(1, 6000), st.booleans()),
)
def test_the_reserve_lies_between_nothing_and_all_that_may_come(
    runs: list[tuple[int, int, int, bool]], ended: list[tuple[int, int]], candidate: tuple[int, int, bool]
) -> None:
    replica = Replica()
    for limit, length in ended:
        replica.learn(limit, min(limit, length))
    for prompt, produced, limit, ignore_eos in runs:
        replica.run(prompt, produced, limit, ignore_eos=ignore_eos)
    most = sum(min(limit - produced, 4096) for _, produced, limit, _ in runs)
    reserved = replica.reserve.begin()
    assert 0 <= reserved <= most + 1e-6
    assert 0 <= replica.reserve.value <= 1
    prompt, limit, ignore_eos = candidate
    request = make_request([1] * prompt, max_new_tokens=limit, ignore_eos=ignore_eos)
    extra = replica.reserve.charge(request, prompt)
    assert extra == replica.reserve.charge(request, prompt)
    assert reserved + extra <= most + min(limit, 4096) + 1e-6


def early_stopping(conservativeness: float | str) -> SchedulerBench:
    """Requests that may produce 200 tokens and are stopped by their frontend after 10, in a pool of 600."""
    bench = SchedulerBench({"num_pages": 600, "max_rows": 40}, schedule_conservativeness=conservativeness)
    live: set[str] = set()
    for number in range(300):
        live.add(bench.submit([number % 40 + 1] * 5, max_new_tokens=200, ignore_eos=False, min_new_tokens=11))
    for _ in range(3000):
        if not live:
            break
        bench.step()
        for rid in sorted(live):
            if len(bench.tokens(rid)) >= 10:
                bench.stop_matched(rid, 10)
                live.remove(rid)
    assert not live
    return bench


def test_a_scheduler_needs_fewer_steps_and_does_the_same_twice() -> None:
    fixed, auto, again = (early_stopping(value) for value in (1.0, "auto", "auto"))
    assert auto.load().steps_total < 0.7 * fixed.load().steps_total
    assert auto.load().retracted_requests_total == 0
    assert auto.told == again.told
    totals = auto.load().scheduler
    assert totals.learns_conservativeness and totals.schedule_conservativeness < 1.0
    assert fixed.load().scheduler.schedule_conservativeness == 1.0


def test_the_value_in_force_is_logged_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "worker.scheduler.forecast")
    replica = Replica()
    replica.run(100, 0, 1000)
    for _ in range(130):
        replica.clock.advance(1.0)
        replica.reserve.begin()
    lines = [parse(message) for message in caplog.messages]
    assert len(lines) == 2 and all(isinstance(line, ConservativenessLine) for line in lines)
