"""Many decode steps at once where nothing else can happen, for simulated devices in virtual time.

Between an arrival, an end and a pool that is full, steps differ only in how far the same requests have come. This takes
the scheduler over such steps in one go, to the very state that so many calls of `Scheduler.step` leave; what they would
have told the frontend, one plain token a step, is not told. Replicas on real devices never use it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from worker.cache.pool import KvPool
from worker.scheduler.planner import Plan, Planner
from worker.scheduler.prefill import PrefillScheduler
from worker.scheduler.rows import RequestTable
from worker.scheduler.stats import SchedulerStats


class SteadyDecodes:
    """Asked between two steps, with a step in flight. `decay`: a decode step found room for all its requests."""

    def __init__(
        self,
        pool: KvPool,
        table: RequestTable,
        prefill: PrefillScheduler,
        planner: Planner,
        decay: Callable[[], None],
        stats: SchedulerStats,
    ) -> None:
        self._pool = pool
        self._table = table
        self._prefill = prefill
        self._planner = planner
        self._decay = decay
        self._stats = stats

    def most(self, flying: Plan) -> int:
        """How many of the next steps only decode the requests of the plan in flight, none of which ends meanwhile, with
        the pages there are."""
        table, batch = self._table, flying.batch
        if not self._prefill.admits_nobody or batch.num_decode != len(batch.rows) or table.num_constrained:
            return 0
        rows = table.decodable_rows()
        if len(rows) != len(batch.rows) or not np.array_equal(rows, batch.rows) or table.scored[rows].any():
            return 0
        if not (table.live(rows, flying.epochs).all() and (table.surely_goes_on[rows] == table.max_new[rows]).all()):
            return 0
        steps = int((table.max_new[rows] - table.num_launched[rows]).min())
        available = self._pool.available_tokens // self._pool.page_size
        while steps and int(table.pages_for_more(rows, steps).sum()) > available:
            steps //= 2
        return steps

    def take(self, flying: Plan, steps: int, token_id: int) -> Plan:
        """Plan the next `steps` steps and handle as many results, from those of `flying` on; each row sampled
        `token_id` every time. Returns the plan that is in flight then, which carries the page writes of all."""
        table, batch = self._table, flying.batch
        rows = batch.rows.astype(np.int64)
        missing = table.pages_for_more(rows, steps)
        table.append_pages(rows, missing, self._pool.alloc(int(missing.sum())))
        table.computed_len[rows] = table.seq_len[rows] + (steps - 1)
        table.seq_len[rows] += steps
        table.num_launched[rows] += steps
        table.repeat_output(rows, token_id, steps)
        for _ in range(steps):
            self._decay()
        self._stats.on_steady(len(rows), steps)
        repeated = msgspec.structs.replace(
            batch,
            step_id=self._planner.skip_ids(steps),
            seq_lens=table.seq_len[rows].astype(np.int32),
            page_writes=table.take_writes(),
        )
        return Plan(repeated, flying.epochs)
