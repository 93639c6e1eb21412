"""Builds the next step: who decodes, whose prompt advances, and the arrays the runner needs for it."""

from __future__ import annotations

import msgspec
import numpy as np

from worker.cache.pool import KvPool
from worker.engine.batch import ForwardBatch, Int32s
from worker.scheduler.grammars import token_masks
from worker.scheduler.prefill import PrefillChunk, PrefillScheduler
from worker.scheduler.reserve import OutputReserve
from worker.scheduler.retraction import Retraction
from worker.scheduler.rows import Int64s, RequestTable
from worker.scheduler.scores import score_requests

_NO_ROWS: Int64s = np.empty(0, np.int64)


class Plan(msgspec.Struct, frozen=True, eq=False):
    """A step, and the epochs of its rows: a row whose epoch has moved on holds another request by now. int64 [R]."""

    batch: ForwardBatch
    epochs: Int64s


class Planner:
    """Turns the state of the request table into steps. `mixed`: prefill chunks and decodes share them; otherwise a step
    with prefill chunks has no decodes."""

    def __init__(
        self,
        pool: KvPool,
        table: RequestTable,
        prefill: PrefillScheduler,
        retraction: Retraction,
        reserve: OutputReserve,
        *,
        mixed: bool,
    ) -> None:
        self._pool = pool
        self._table = table
        self._prefill = prefill
        self._retraction = retraction
        self._reserve = reserve
        self._mixed = mixed
        self._next_step_id = 0

    def must_settle(self) -> bool:
        """Whether a plan made now may take pages from running requests, or needs the tokens in flight: a grammar allows
        the next one by the last. Results in flight must be handled first then: they may free pages, and what they
        computed for those requests would be lost."""
        rows = self._table.decodable_rows()
        if self._table.num_constrained and bool(self._table.constrained[rows].any()):
            return True
        return self._retraction.short_of_pages(rows) or self._prefill.may_preempt()

    def may_retract(self) -> bool:
        """Whether a plan made now would take pages from running requests for others."""
        return self._retraction.short_of_pages(self._table.decodable_rows())

    def plan(self) -> Plan | None:
        """The next step, with its pages allocated and the table advanced as if it had run. None: nothing to compute."""
        if self._mixed:
            decodes, retracted = self._reserve_pages(self._table.decodable_rows())
            epochs = self._table.epoch[decodes]
            # Room that a retraction made belongs to those who stay.
            chunks = [] if retracted else self._prefill.schedule(len(decodes))
            decodes = np.compress(self._table.live(decodes, epochs), decodes)  # without the preempted
        else:
            chunks = self._prefill.schedule(0)
            decodes = _NO_ROWS if chunks else self._reserve_pages(self._table.decodable_rows())[0]
        if not len(decodes) and not chunks:
            return None
        return self._build(decodes, chunks)

    def skip_ids(self, steps: int) -> int:
        """So many steps are planned without being asked for. Returns the id of the last one."""
        self._next_step_id += steps
        return self._next_step_id - 1

    def _reserve_pages(self, rows: Int64s) -> tuple[Int64s, bool]:
        """Allocate the pages of one decode step. Returns the rows that take part, and whether any had to leave."""
        table, retracted = self._table, False
        opening = table.rows_opening_page(rows)
        if len(opening) * self._pool.page_size > self._pool.available_tokens:
            rows, retracted = self._retraction.make_room(rows, self._prefill.chunked), True
            opening = table.rows_opening_page(rows)
        elif len(rows):
            self._reserve.decay()
        table.append_page(opening, self._pool.alloc(len(opening)))
        table.seq_len[rows] += 1
        table.num_launched[rows] += 1
        return rows, retracted

    def _build(self, decodes: Int64s, chunks: list[PrefillChunk]) -> Plan:
        num_decode = len(decodes)
        rows = np.concatenate((decodes, np.array([chunk.request.row for chunk in chunks], np.int64)))
        query_lens = np.ones(len(rows), np.int32)
        query_lens[num_decode:] = [chunk.length for chunk in chunks]
        samples = np.ones(len(rows), np.bool_)
        samples[num_decode:] = [chunk.last for chunk in chunks]
        batch = ForwardBatch(
            step_id=self._next_step_id,
            rows=rows.astype(np.int32),
            query_lens=query_lens,
            seq_lens=self._table.seq_len[rows].astype(np.int32),
            num_decode=num_decode,
            prefill_ids=_input_ids(chunks),
            samples=samples,
            page_writes=self._table.take_writes(),
            admissions=tuple(chunk.admission for chunk in chunks if chunk.admission is not None),
            masks=token_masks(self._table, rows, samples),
            score_requests=score_requests(self._table, rows, query_lens, samples, chunks),
        )
        self._next_step_id += 1
        return Plan(batch, self._table.epoch[rows])


def _input_ids(chunks: list[PrefillChunk]) -> Int32s:
    parts = [chunk.request.fill_ids[chunk.start : chunk.start + chunk.length] for chunk in chunks]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
