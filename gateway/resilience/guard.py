"""What the gateway has learnt from attempts at one life of one worker: its breaker, and until when it is to rest.

A worker that comes back as another process gets a new guard; verdicts on requests to the old one go to the old guard.
"""

from __future__ import annotations

from enum import IntEnum

from gateway.resilience.breaker import Breaker, BreakerRules
from gateway.resilience.outcomes import Outcome


class Standing(IntEnum):
    """How gladly a ready worker is given requests; the smaller the better."""

    GOOD = 0
    RESTING = 1  # it answered with back-pressure a moment ago
    BARRED = 2  # its breaker admits nothing


class ReplicaGuard:
    """Verdicts in, standing out. Its owner is the registry, which publishes changes of the standing."""

    __slots__ = ("breaker", "rest_until_s", "standing")

    def __init__(self, rules: BreakerRules) -> None:
        self.breaker = Breaker(rules)
        self.rest_until_s = 0.0
        self.standing = Standing.GOOD

    def begin_trial(self) -> int:
        """See Breaker."""
        trial = self.breaker.begin_trial()
        self._settle()
        return trial

    def judge(self, outcome: Outcome, trial: int, now_s: float, rest_s: float) -> None:
        """An attempt is over. `rest_s` counts for back-pressure."""
        if outcome is Outcome.SERVED:
            self.breaker.succeeded(trial)
        elif outcome is Outcome.REPLICA_FAULT:
            self.breaker.failed(trial, now_s)
        else:
            self.breaker.dropped(trial)
        if outcome is Outcome.BACK_PRESSURE:
            self.rest_until_s = max(self.rest_until_s, now_s + rest_s)
        self._settle()

    def tick(self, now_s: float) -> None:
        """Time has passed: rests end, open breakers let trials through."""
        self.breaker.tick(now_s)
        if self.rest_until_s <= now_s:
            self.rest_until_s = 0.0
        self._settle()

    def _settle(self) -> None:
        if not self.breaker.admits:
            self.standing = Standing.BARRED
        else:
            self.standing = Standing.RESTING if self.rest_until_s else Standing.GOOD
