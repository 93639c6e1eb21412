"""A token bucket. Pure: time is an argument."""

from __future__ import annotations


class TokenBucket:
    """Holds at most `burst` tokens, full at first, and gains `rate_per_s` a second."""

    __slots__ = ("_burst", "_filled_s", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = max(burst, 1.0)
        self._tokens = self._burst
        self._filled_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Take one token, if there is one."""
        self._fill(now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is a token."""
        self._fill(now_s)
        return max((1.0 - self._tokens) / self._rate_per_s, 0.0)

    def _fill(self, now_s: float) -> None:
        if self._filled_s is not None:
            self._tokens = min(self._tokens + max(now_s - self._filled_s, 0.0) * self._rate_per_s, self._burst)
        self._filled_s = now_s
