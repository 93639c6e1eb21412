"""The time a simulated device lives in: real, with sleeping, or virtual, where waiting only moves the clock."""

from __future__ import annotations

import time
from typing import Protocol

from common.clock import Clock, MonotonicClock


class DeviceClock(Clock, Protocol):
    """A clock that can be waited on."""

    def wait_until(self, at_s: float) -> None:
        """Return when `now_s` has reached `at_s`; at once if it has."""
        ...


class SleepingClock(MonotonicClock):
    """Real time. Sleeps to absolute moments, so that many waits do not add up their delays."""

    def wait_until(self, at_s: float) -> None:
        remaining_s = at_s - self.now_s()
        if remaining_s > 0:
            time.sleep(remaining_s)


class VirtualClock:
    """Time that passes only by being waited for: hours of load in seconds, and the same on every machine."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def wait_until(self, at_s: float) -> None:
        self._now_s = max(self._now_s, at_s)
