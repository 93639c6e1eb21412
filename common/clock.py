"""Time as an argument: everything that waits, ages or expires gets a Clock, so tests can move it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic seconds."""

    def now_s(self) -> float:
        """Monotonic time in seconds; only differences mean anything."""
        ...


class MonotonicClock:
    """The real clock."""

    now_s = staticmethod(time.monotonic)  # no call of our own in between: the gateway asks very often
