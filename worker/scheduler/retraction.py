"""Who gives up its pages when the next decode step does not fit the pool."""

from __future__ import annotations

import numpy as np

from worker.cache.pool import KvPool
from worker.scheduler.constants import RETRACT_DECODE_STEPS
from worker.scheduler.release import Lifecycle
from worker.scheduler.request import Request
from worker.scheduler.reserve import OutputReserve
from worker.scheduler.rows import Int64s, RequestTable
from worker.scheduler.stats import SchedulerStats

OUT_OF_MEMORY = (
    "Out of memory even after retracting all other requests: the KV pool of {pool} tokens cannot hold this request of "
    "{tokens} tokens."
)


def retraction_order(num_outputs: Int64s, prompt_len: Int64s, rank: Int64s | None = None) -> Int64s:
    """Indices of requests, the first to retract first: least urgent (if ranks are given), then fewest outputs, then
    longest prompt, then position."""
    by_length = (-prompt_len, num_outputs)
    return np.lexsort(by_length if rank is None else (*by_length, -rank))


class Retraction:
    """Finds room for the next token of every running request. `by_priority`: the least urgent give way first."""

    def __init__(
        self,
        pool: KvPool,
        table: RequestTable,
        lifecycle: Lifecycle,
        reserve: OutputReserve,
        stats: SchedulerStats,
        *,
        by_priority: bool,
    ) -> None:
        self._by_priority = by_priority
        self._pool = pool
        self._table = table
        self._lifecycle = lifecycle
        self._reserve = reserve
        self._stats = stats

    def short_of_pages(self, rows: Int64s) -> bool:
        """Whether the next decode of `rows` needs more pages than are free or evictable."""
        return len(self._table.rows_opening_page(rows)) * self._pool.page_size > self._pool.available_tokens

    def make_room(self, rows: Int64s, chunked: Request | None) -> Int64s:
        """Retract requests until the decodes that remain fit. Returns their rows.

        No step may be in flight. `chunked`, whose prompt is partly computed, goes when a single decode is left; if that
        does not help either, the last request is aborted.
        """
        table = self._table
        ranks = table.rank[rows] if self._by_priority else None
        order = retraction_order(table.num_outputs[rows], table.prompt_len[rows], ranks)
        queue = [table.request(row) for row in rows[order].tolist()]
        num_retracted = 0
        while queue and (not num_retracted or self.short_of_pages(_rows_of(queue))):
            if len(queue) > 1:
                victim = queue.pop(0)
            elif chunked is not None:
                victim, chunked = chunked, None
            else:
                self._give_up(queue.pop())
                break
            self._stats.on_victim(victim.prompt_len, table.num_outputs_of(victim))
            self._lifecycle.retract(victim)
            num_retracted += 1
            self._pool.make_free(-(-len(queue) * RETRACT_DECODE_STEPS // self._pool.page_size))
        stay = np.sort(_rows_of(queue))
        if num_retracted:
            self._report(stay, num_retracted)
        return stay

    def _report(self, stay: Int64s, num_retracted: int) -> None:
        before = self._reserve.value
        generated = int(self._table.num_outputs[stay].sum())
        self._reserve.raise_after_retraction(generated, int(self._table.max_new[stay].sum()), len(stay))
        self._stats.on_retraction(num_retracted, before, self._reserve.value)

    def _give_up(self, request: Request) -> None:
        tokens = int(self._table.seq_len[request.row]) + 1
        message = OUT_OF_MEMORY.format(pool=self._pool.total_tokens, tokens=tokens)
        self._lifecycle.abort(request, 500, message)


def _rows_of(requests: list[Request]) -> Int64s:
    return np.array([request.row for request in requests], np.int64)
