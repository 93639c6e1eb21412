"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Implements common.clock.Clock."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
