"""The breaker: by example, and against its rules under any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.resilience.breaker import LEGAL_TRANSITIONS, Breaker, BreakerRules, BreakerState

RULES = BreakerRules(failure_threshold=3, success_threshold=2, open_s=10, window_s=60)


def state(breaker: Breaker) -> BreakerState:
    """Read anew: a type checker takes an attribute for unchanged by calls."""
    return breaker.state


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    for _ in range(3):
        breaker.failed(0, at_s)
    assert state(breaker) is BreakerState.OPEN
    return breaker


def half_open() -> Breaker:
    breaker = opened()
    breaker.tick(10.0)
    return breaker


def test_every_state_is_in_the_table() -> None:
    assert set(LEGAL_TRANSITIONS) == set(BreakerState)
    assert LEGAL_TRANSITIONS[BreakerState.OPEN] == {BreakerState.HALF_OPEN}  # never straight to closed


def test_it_opens_at_the_threshold_and_not_before() -> None:
    breaker = Breaker(RULES)
    for _ in range(2):
        breaker.failed(0, 0.0)
        assert breaker.admits
    breaker.failed(0, 0.0)
    assert (state(breaker), breaker.admits) == (BreakerState.OPEN, False)


def test_faults_outside_the_window_do_not_add_up() -> None:
    breaker = Breaker(RULES)
    for now_s in (0.0, 30.0, 61.0, 92.0, 123.0):
        breaker.failed(0, now_s)
    assert state(breaker) is BreakerState.CLOSED
    breaker.failed(0, 124.0)  # with those of 92 and 123
    assert state(breaker) is BreakerState.OPEN


@pytest.mark.parametrize(("successes", "opens"), [(0, True), (1, True), (2, False), (50, False)])
def test_few_faults_among_many_successes_do_not_open(successes: int, opens: bool) -> None:
    """At least half of the answers must be faults."""
    breaker = Breaker(RULES)
    for _ in range(20):
        breaker.failed(0, 1.0)
        breaker.successes += successes
    assert (state(breaker) is BreakerState.OPEN) == opens


def test_half_open_admits_so_many_trials() -> None:
    breaker = half_open()
    trials = []
    while breaker.admits:
        trials.append(breaker.begin_trial())
    assert len(trials) == RULES.success_threshold
    breaker.dropped(trials[0])  # its client left: another may try
    assert breaker.admits
    trials[0] = breaker.begin_trial()
    breaker.succeeded(trials[0])
    assert not breaker.admits  # one more success is awaited, and its trial runs
    breaker.succeeded(trials[1])
    assert state(breaker) is BreakerState.CLOSED and breaker.admits


def test_the_first_fault_of_a_trial_opens_it_again() -> None:
    breaker = half_open()
    first, second = breaker.begin_trial(), breaker.begin_trial()
    breaker.failed(first, 11.0)
    breaker.succeeded(second)
    assert state(breaker) is BreakerState.OPEN
    breaker.tick(20.0)
    assert state(breaker) is BreakerState.OPEN
    breaker.tick(21.0)
    assert state(breaker) is BreakerState.HALF_OPEN


def test_verdicts_on_old_trials_come_too_late() -> None:
    breaker = half_open()
    old = breaker.begin_trial()
    breaker.failed(breaker.begin_trial(), 11.0)
    breaker.tick(30.0)
    breaker.failed(old, 31.0)
    assert state(breaker) is BreakerState.HALF_OPEN
    breaker.succeeded(old)
    assert [breaker.begin_trial() > old, breaker.begin_trial() > old, breaker.admits] == [True, True, False]


def test_requests_from_before_do_not_judge_a_half_open_breaker() -> None:
    breaker = half_open()
    breaker.failed(0, 11.0)
    breaker.succeeded(0)
    assert state(breaker) is BreakerState.HALF_OPEN and breaker.admits


def test_closing_forgets_the_old_faults() -> None:
    breaker = half_open()
    for trial in (breaker.begin_trial(), breaker.begin_trial()):
        breaker.succeeded(trial)
    for _ in range(2):
        breaker.failed(0, 12.0)
    assert state(breaker) is BreakerState.CLOSED


def test_it_can_be_disabled() -> None:
    breaker = Breaker(BreakerRules(failure_threshold=1, enabled=False))
    for _ in range(100):
        breaker.failed(0, 0.0)
    assert breaker.admits


class AnyOrder(RuleBasedStateMachine):
    """Attempts begin and end in any order while time passes; legal moves are asserted by the breaker itself."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(RULES)
        self.now_s = 0.0
        self.running: list[int] = []  # trial numbers
        self.faults_in_a_row = 0

    @rule()
    def begin(self) -> None:
        if self.breaker.admits:
            self.running.append(self.breaker.begin_trial())

    @rule(data=st.data(), verdict=st.sampled_from(["succeeded", "failed", "dropped"]))
    def end(self, data: st.DataObject, verdict: str) -> None:
        if not self.running:
            return
        trial = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        closed = state(self.breaker) is BreakerState.CLOSED
        if verdict == "failed":
            self.breaker.failed(trial, self.now_s)
            self.faults_in_a_row += closed
            if closed and state(self.breaker) is BreakerState.OPEN:
                assert self.faults_in_a_row  # never by anything but a fault
        else:
            getattr(self.breaker, verdict)(trial)
            if verdict == "succeeded":
                self.faults_in_a_row = 0
            assert not (closed and state(self.breaker) is not BreakerState.CLOSED)

    @rule(seconds=st.sampled_from([0.5, 9.5, 10.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.breaker.tick(self.now_s)

    @invariant()
    def trials_are_bounded(self) -> None:
        if state(self.breaker) is BreakerState.HALF_OPEN:
            period = max(self.running, default=0)
            assert sum(trial == period for trial in self.running if trial) <= RULES.success_threshold

    @invariant()
    def no_state_is_for_ever(self) -> None:
        """From wherever it is, time and good trials close it."""
        if state(self.breaker) is BreakerState.OPEN:
            self.breaker.tick(self.now_s + RULES.open_s)
            assert state(self.breaker) is BreakerState.HALF_OPEN
            self.now_s += RULES.open_s


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, deadline=None)
