"""The closed loop of --schedule-conservativeness auto: from retractions to a margin of safety."""

from __future__ import annotations

RETRACTION_INTERVAL_S = 300.0
PAUSE_S = 30.0
START, STEP, MOST = 3.0, 1.0, 7.0
_LONGEST_GAP_S = 1.0


class Margin:
    """Standard deviations of the forecast to keep free. Pure: time goes in.

    A retraction adds STEP; time under load takes it away again at a rate of STEP each RETRACTION_INTERVAL_S, and the
    faster the further it is above its START: loads that change raise it, and it must come down when they have. So where
    a smaller margin means more retractions, it settles where they come at least a minute apart. Retractions within
    PAUSE_S of one that counted have the same cause and do not count.
    """

    def __init__(self, now_s: float) -> None:
        self.value = START
        self._last_s = now_s
        self._raised_s = now_s - PAUSE_S

    def under_load(self, now_s: float) -> None:
        """Requests wait for room. Of the time since the last call at most a second counts: nobody may have waited."""
        passed_s = min(now_s - self._last_s, _LONGEST_GAP_S)
        self._last_s = now_s
        haste = 1.0 + max(self.value - START, 0.0)
        self.value = max(self.value - haste * STEP * passed_s / RETRACTION_INTERVAL_S, 0.0)

    def on_retraction(self, now_s: float) -> None:
        """Requests had to leave the pool."""
        if now_s - self._raised_s >= PAUSE_S:
            self.value = min(self.value + STEP, MOST)
            self._raised_s = now_s
