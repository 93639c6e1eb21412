"""The circuit breaker of one worker: closed, open, half-open. Time is an argument.

It opens when the last `failure_threshold` faults came within `window_s` and no more successes than faults between
them: a worker that fails every request opens it, one that fails now and then under much traffic does not. Half-open
admits `success_threshold` trials; when all of them succeed it closes, at the first fault it opens again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum


class BreakerState(Enum):
    """Whether a worker gets requests."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


LEGAL_TRANSITIONS: dict[BreakerState, frozenset[BreakerState]] = {
    BreakerState.CLOSED: frozenset({BreakerState.OPEN}),
    BreakerState.OPEN: frozenset({BreakerState.HALF_OPEN}),
    BreakerState.HALF_OPEN: frozenset({BreakerState.CLOSED, BreakerState.OPEN}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """When breakers open and close. `enabled=False`: never."""

    failure_threshold: int = 10
    success_threshold: int = 3
    open_s: float = 15.0
    window_s: float = 120.0
    enabled: bool = True


class Breaker:
    """One worker's. A trial is known by the number that `begin_trial` gave; 0 stands for an attempt that was none."""

    __slots__ = ("_faults", "_opened_s", "_period", "_rules", "_trial_successes", "_trials", "state", "successes")

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self.state = BreakerState.CLOSED
        self.successes = 0  # of attempts that were no trials, ever; the data path counts them here
        self._faults: deque[tuple[float, int]] = deque(maxlen=rules.failure_threshold)  # time, successes till then
        self._opened_s = 0.0
        self._period = 0  # of being half-open: verdicts on trials of an earlier one come too late
        self._trials = 0
        self._trial_successes = 0

    @property
    def admits(self) -> bool:
        """Whether one more request may be sent."""
        if self.state is BreakerState.HALF_OPEN:
            return self._trials + self._trial_successes < self._rules.success_threshold
        return self.state is BreakerState.CLOSED

    def begin_trial(self) -> int:
        """A request is sent. Returns its trial number, 0 unless half-open."""
        if self.state is not BreakerState.HALF_OPEN:
            return 0
        self._trials += 1
        return self._period

    def succeeded(self, trial: int) -> None:
        """An attempt ended well."""
        if not self._end_trial(trial):
            self.successes += not trial
            return
        self._trial_successes += 1
        if self._trial_successes >= self._rules.success_threshold:
            self._faults.clear()
            self._move(BreakerState.CLOSED)

    def failed(self, trial: int, now_s: float) -> None:
        """An attempt showed a fault. While open, or half-open and it was no trial, it is news of yesterday."""
        if self._end_trial(trial):
            self._open(now_s)
        elif self.state is BreakerState.CLOSED and self._rules.enabled and not trial:
            faults, rules = self._faults, self._rules
            faults.append((now_s, self.successes))
            first_s, successes_before = faults[0]
            full = len(faults) == rules.failure_threshold
            if full and now_s - first_s <= rules.window_s and self.successes - successes_before <= len(faults):
                self._open(now_s)

    def dropped(self, trial: int) -> None:
        """An attempt ended and showed nothing: another may try."""
        self._end_trial(trial)

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        if self.state is BreakerState.OPEN and now_s - self._opened_s >= self._rules.open_s:
            self._period += 1
            self._trials = self._trial_successes = 0
            self._move(BreakerState.HALF_OPEN)

    def _open(self, now_s: float) -> None:
        self._opened_s = now_s
        self._move(BreakerState.OPEN)

    def _end_trial(self, trial: int) -> bool:
        """Whether this was a trial of the present half-open period."""
        if not trial or trial != self._period or self.state is not BreakerState.HALF_OPEN:
            return False
        self._trials -= 1
        return True

    def _move(self, state: BreakerState) -> None:
        assert state in LEGAL_TRANSITIONS[self.state], (self.state, state)
        self.state = state
