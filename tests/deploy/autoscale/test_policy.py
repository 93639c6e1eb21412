"""The policy: bounds, up at once, down slowly, never a flap; whatever the demand was."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.autoscale.demand import Demand
from deploy.autoscale.policy import Fleet, Rules, ScalingPolicy

TICK_S = 10.0
RULES = Rules(min_replicas=1, max_replicas=8)

demands = st.builds(
    Demand,
    replicas=st.floats(0, 12),
    missing=st.sampled_from([0, 0, 0, 1]),
    ttft_share=st.sampled_from([None, 1.0, 1.0, 0.5]),
)
# Stretches of equal demand, so that both long calm and quick change are tried.
histories = st.lists(st.tuples(demands, st.integers(1, 40)), max_size=10)


class Run:
    """A policy with a fleet that follows it; a new replica is ready after `start_ticks`."""

    def __init__(self, rules: Rules = RULES, *, first: int = 1, start_ticks: int = 3) -> None:
        self.policy = ScalingPolicy(rules)
        self.wanted = [first]
        self.now_s = 0.0
        self._start_ticks = start_ticks
        self._starting: list[int] = []  # ticks left

    def tick(self, demand: Demand, *, draining: int = 0) -> int:
        """One more tick. Returns what is wanted."""
        self.now_s += TICK_S
        self._starting = [left - 1 for left in self._starting if left > 1]
        current = self.wanted[-1]
        fleet = Fleet(ready=current - len(self._starting), starting=len(self._starting), draining=draining)
        self.wanted.append(self.policy.tick(self.now_s, demand, fleet, current))
        self._starting += [self._start_ticks] * max(0, self.wanted[-1] - current)
        return self.wanted[-1]

    def ticks(self, demand: Demand, number: int) -> int:
        """Returns what is wanted after the last."""
        for _ in range(number):
            self.tick(demand)
        return self.wanted[-1]

    def moves(self) -> list[tuple[float, int]]:
        """(when, change), in order."""
        return [(n * TICK_S, b - a) for n, (a, b) in enumerate(pairwise(self.wanted)) if a != b]


def test_a_burst_adds_several_at_once() -> None:
    assert Run().tick(Demand(replicas=5.2)) == 6


def test_a_moment_above_the_mean_adds_nothing_within_the_margin() -> None:
    run = Run(first=3)
    assert run.ticks(Demand(replicas=2.5), 100) == 3
    assert run.tick(Demand(replicas=4.1)) == 3
    assert run.tick(Demand(replicas=4.3)) == 4


def test_replicas_that_start_count() -> None:
    run = Run(start_ticks=50)
    assert [run.tick(Demand(replicas=3.5)) for _ in range(20)] == [4] * 20


def test_low_load_takes_one_after_the_other() -> None:
    run = Run(first=4)
    run.ticks(Demand(replicas=0.2), 300)
    first_s, *others_s = [at_s for at_s, change in run.moves()]
    assert [change for _, change in run.moves()] == [-1, -1, -1]
    assert first_s >= RULES.down_after_s
    assert all(b - a >= RULES.down_interval_s for a, b in pairwise([first_s, *others_s]))


def test_the_next_one_waits_for_the_drain() -> None:
    run = Run(first=3)
    for _ in range(300):
        run.tick(Demand(replicas=0.0), draining=1 if run.wanted[-1] == 2 else 0)
    assert run.wanted[-1] == 2


@pytest.mark.parametrize("demand", [Demand(replicas=0.0, missing=1), Demand(replicas=0.0, ttft_share=0.5)])
def test_missing_reports_and_late_answers_keep_everybody(demand: Demand) -> None:
    run = Run(Rules(min_replicas=1, max_replicas=8, ttft_headroom=0), first=4)
    assert run.ticks(demand, 500) == 4


def test_late_answers_add_one_replica_beyond_the_demand() -> None:
    run = Run(first=2)
    assert run.ticks(Demand(replicas=2.0, ttft_share=0.9), 500) == 3


def test_one_fewer_must_leave_some_room() -> None:
    run = Run(first=3)
    assert run.ticks(Demand(replicas=1.95), 300) == 3
    assert run.ticks(Demand(replicas=1.85), 300) == 2


@settings(max_examples=40)
@given(histories, st.integers(0, 12), st.integers(1, 4), st.integers(4, 8))
def test_any_history_stays_within_the_bounds(
    history: list[tuple[Demand, int]], first: int, low: int, high: int
) -> None:
    run = Run(Rules(min_replicas=low, max_replicas=high), first=first)
    for demand, number in history:
        run.ticks(demand, number)
    assert all(low <= wanted <= high for wanted in run.wanted[1:])


@settings(max_examples=40)
@given(histories)
def test_after_any_history_nobody_goes_soon_after_somebody_came(history: list[tuple[Demand, int]]) -> None:
    run = Run()
    for demand, number in history:
        run.ticks(demand, number)
    for (came_s, before), (went_s, after) in pairwise(run.moves()):
        if after < 0:
            assert after == -1
            assert went_s - came_s >= (RULES.down_after_s if before > 0 else RULES.down_interval_s)


@settings(max_examples=40)
@given(histories)
def test_nobody_goes_while_a_report_is_missing(history: list[tuple[Demand, int]]) -> None:
    run = Run(first=8)
    for demand, number in history:
        for _ in range(number):
            before = run.wanted[-1]
            assert run.tick(demand) >= before or not demand.missing


@settings(max_examples=40)
@given(histories, st.floats(0, 12))
def test_constant_load_settles(history: list[tuple[Demand, int]], replicas: float) -> None:
    run = Run()
    for demand, number in history:
        run.ticks(demand, number)
    run.ticks(Demand(replicas=replicas), 150)
    settled = run.wanted[-1]
    assert RULES.clamp(int(replicas)) <= settled
    assert run.ticks(Demand(replicas=replicas), 100) == settled
    assert set(run.wanted[-100:]) == {settled}
