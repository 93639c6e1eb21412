"""Retries: how many one request may make and how long it waits before each, and how many the whole gateway may make."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """What one request may do.

    Each attempt goes to a worker that it has not tried; so the first retry does not wait, and the k-th after it waits
    `initial_backoff_s * multiplier**(k-1)`, give or take a share `jitter`, at most `max_backoff_s`.
    """

    max_retries: int
    initial_backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    multiplier: float = 1.5
    jitter: float = 0.2

    def backoff_s(self, retry: int, rng: random.Random) -> float:
        """The wait before retry number `retry`, 1 being the first."""
        if retry <= 1:
            return 0.0
        wait_s = self.initial_backoff_s
        for _ in range(retry - 2):  # no power: it could overflow
            if wait_s >= self.max_backoff_s:
                break
            wait_s *= self.multiplier
        return min(wait_s * (1 + rng.uniform(-self.jitter, self.jitter)), self.max_backoff_s)


class RetryBudget:
    """Each request earns `ratio` retries, and each second `min_per_s`; at most ten seconds' worth is kept.

    So a fleet in trouble sees at most 1 + ratio times its normal load.
    """

    _KEPT_S = 10.0

    def __init__(self, *, ratio: float, min_per_s: float) -> None:
        self._ratio = ratio
        self._min_per_s = min_per_s
        self._cap = max(min_per_s * self._KEPT_S, 1.0)
        self._tokens = self._cap
        self._filled_s: float | None = None

    def earn(self) -> None:
        """A request came in."""
        if self._tokens < self._cap:
            self._tokens += self._ratio

    def take(self, now_s: float) -> bool:
        """Spend one retry, if there is one."""
        if self._filled_s is not None:
            self._tokens = min(self._cap, self._tokens + (now_s - self._filled_s) * self._min_per_s)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
