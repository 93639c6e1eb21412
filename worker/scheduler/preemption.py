"""Urgent waiting requests take the place of running ones that are much less urgent."""

from __future__ import annotations

import numpy as np

from worker.cache.pool import KvPool
from worker.scheduler.admission import expected_tokens
from worker.scheduler.release import Lifecycle
from worker.scheduler.request import Request
from worker.scheduler.reserve import OutputReserve
from worker.scheduler.rows import Int64s, RequestTable
from worker.scheduler.stats import SchedulerStats


class Preemption:
    """Chooses and retracts victims: the least urgent first, among equals the newest. A victim goes to the front of its
    lane, keeps what it has generated, and computes it again later."""

    def __init__(
        self,
        pool: KvPool,
        table: RequestTable,
        lifecycle: Lifecycle,
        reserve: OutputReserve,
        stats: SchedulerStats,
        threshold: int,
    ) -> None:
        self._pool = pool
        self._table = table
        self._lifecycle = lifecycle
        self._reserve = reserve
        self._stats = stats
        self._threshold = threshold

    def candidates(self, request: Request) -> Int64s:
        """Rows that `request` may take the place of, in no order. Not those whose mask is being filled: their grammar
        is in use."""
        table = self._table
        return np.flatnonzero(table.decoding & ~table.awaits_mask & (table.rank - request.rank > self._threshold))

    def make_room(self, request: Request, deficit_tokens: float) -> float | None:
        """Retract as few as free more than `deficit_tokens`, but one at least. No step may be in flight.

        Returns the tokens that were reserved for the victims' outputs, or None if all candidates together hold too
        little; then nobody leaves.
        """
        table = self._table
        rows = self.candidates(request)
        rows = rows[np.lexsort((-table.arrival[rows], -table.rank[rows]))]
        held = (table.num_pages[rows] - table.shared_pages[rows]) * self._pool.page_size
        reserved = expected_tokens(table.max_new[rows] - table.num_launched[rows], self._reserve.value)
        gained = np.cumsum(held + reserved)
        if not len(rows) or gained[-1] <= deficit_tokens:
            return None
        count = int(np.searchsorted(gained, deficit_tokens, side="right")) + 1
        for victim in table.requests(rows[:count]):
            self._lifecycle.retract(victim)
        self._stats.on_preemption(count)
        return float(reserved[:count].sum())
