"""Ends a process whose loop is stuck, even inside C code: faulthandler's timer thread needs no Python to run."""

from __future__ import annotations

import faulthandler
import time

_REARM_S = 1.0  # arming starts a thread, so it is not done every step


class Watchdog:
    """`alive` at least every `timeout_s`, or the process writes all stacks to stderr and exits with code 1."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._rearm_s = min(_REARM_S, timeout_s / 10)
        self._armed_s: float | None = None

    def alive(self) -> None:
        """The loop goes on. Cheap."""
        now_s = time.monotonic()
        if self._armed_s is None or now_s - self._armed_s > self._rearm_s:
            self._armed_s = now_s
            faulthandler.dump_traceback_later(self._timeout_s, exit=True)

    def rest(self) -> None:
        """The loop waits for work; it may take as long as it likes."""
        if self._armed_s is not None:
            faulthandler.cancel_dump_traceback_later()
            self._armed_s = None
