"""Virtual time with things to come: what simulations of whole fleets run on."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from worker.engine.sim.clock import VirtualClock


class Timeline:
    """Does what is planned in the order of time, things of one moment in the order they were planned in. What is done
    may plan more, never in the past."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._plans: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Plan `what` for that moment."""
        self._count += 1
        heapq.heappush(self._plans, (when_s, self._count, what))

    def run(self, until_s: float = math.inf, *, included: bool = True) -> None:
        """Do all that is planned up to that moment, with `included` what is planned for the moment itself too. The
        clock is there afterwards; without an end it is where the last thing happened."""
        plans = self._plans
        while plans and (plans[0][0] <= until_s if included else plans[0][0] < until_s):
            when_s, _, what = heapq.heappop(plans)
            self.clock.wait_until(when_s)
            what()
        if until_s < math.inf:
            self.clock.wait_until(until_s)
