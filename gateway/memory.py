"""Gives memory that a burst of requests has left unused back to the operating system.

malloc keeps what is freed, scattered over its heap: 2,000 streams leave 6 MiB of it, of which 5 can go back. What
Python's own allocator keeps, in blocks of 1 MiB with something alive in most of them, stays for the next burst, unless
jemalloc is installed (gateway/allocator.py).
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

_LEAST_PEAK = 256  # requests at once that are worth the few milliseconds
_QUIET_SHARE = 8  # the burst is over when less than 1 of so many is left
_QUIET_S = 6.0  # ... for so long: until kept connections to workers are closed, too


def give_back() -> None:
    """Milliseconds. Without glibc only Python's own free lists are emptied."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryTrimmer:
    """Looks at how many requests there are, and calls `trim` once after each burst."""

    def __init__(self, trim: Callable[[], None] = give_back) -> None:
        self._trim = trim
        self._peak = 0
        self._quiet_since_s: float | None = None

    def look(self, inflight: int, now_s: float) -> None:
        """Call it now and then."""
        self._peak = max(self._peak, inflight)
        if self._peak < _LEAST_PEAK or inflight * _QUIET_SHARE > self._peak:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= _QUIET_S:
            self._peak, self._quiet_since_s = inflight, None
            self._trim()
