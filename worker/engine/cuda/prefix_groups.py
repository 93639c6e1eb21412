"""Remembers how the running requests share prefixes: found anew only when that can have changed."""

from __future__ import annotations

import numpy as np

from worker.engine.batch import ForwardBatch, Int32s
from worker.engine.cuda.cascade import CascadeCost, Grouping, alone, group_by_prefix
from worker.engine.page_table import PageTable

_NOBODY: Int32s = np.empty(0, np.int32)


class PrefixGroups:
    """Groups of the decodes of each batch, of `min_rows` at least."""

    def __init__(self, table: PageTable, *, cost: CascadeCost, max_groups: int, min_rows: int) -> None:
        self._table = table
        self._cost = cost
        self._max_groups = max_groups
        self._min_rows = min_rows
        self._newest_page = np.full(len(table.pages), -1, np.int64)  # by row: where its last decode wrote, or -1
        self._rows = _NOBODY
        self._last = alone(_NOBODY)

    def find(self, batch: ForwardBatch) -> Grouping:
        """The grouping of the batch's decodes; its page writes must be in the table already. Wants to see every batch,
        also those without decodes: their writes may end what it remembers."""
        if self._rewritten(batch.page_writes):
            self._rows = _NOBODY
        rows = batch.rows[: batch.num_decode]
        lens = batch.seq_lens[: batch.num_decode]
        if len(rows) < self._min_rows:
            return alone(lens)
        if not np.array_equal(rows, self._rows):
            self._newest_page.fill(-1)
            self._rows = rows.copy()
            longest = (int(lens.max()) - 1) // self._table.page_size + 1
            self._last = group_by_prefix(
                self._table.pages[rows, :longest],
                lens,
                page_size=self._table.page_size,
                cost=self._cost,
                max_groups=self._max_groups,
            )
        self._newest_page[rows] = (lens - 1) // self._table.page_size
        return self._last

    def _rewritten(self, writes: Int32s) -> bool:
        """Whether a write changes a page that some decode has already filled, as when duplicates are dropped."""
        return bool((writes[:, 1] <= self._newest_page[writes[:, 0]]).any()) if len(writes) else False
