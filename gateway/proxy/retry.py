"""How many retries the whole gateway may make: a token bucket filled by requests, with a floor for quiet times."""

from __future__ import annotations


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
