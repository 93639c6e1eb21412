"""Reads from a batch what its time depends on, by the same rules as the CUDA runner: graphs, padding, prefix groups."""

from __future__ import annotations

import numpy as np

from worker.engine.batch import ForwardBatch
from worker.engine.cuda.cascade import CASCADE_COST, MAX_GROUPS, MIN_CASCADE_ROWS, PrefixGroup
from worker.engine.cuda.graph_sizes import cascade_sizes, padded_size
from worker.engine.cuda.prefix_groups import PrefixGroups
from worker.engine.page_table import PageTable
from worker.engine.sim.step_time import StepShape


class ShapeReader:
    """Wants to see every batch, in launch order, after its page writes are in `table`. Decodes are padded to `sizes`;
    `captured`: with graphs for them. `cascade`: prefixes that pay are read once."""

    def __init__(self, table: PageTable, *, sizes: tuple[int, ...], captured: bool, cascade: bool) -> None:
        self._page_size = table.page_size
        self._sizes = sizes
        self._cascade_sizes = cascade_sizes(sizes, MIN_CASCADE_ROWS)
        self._captured = captured
        self._cascade = cascade
        self._groups = PrefixGroups(table, cost=CASCADE_COST, max_groups=MAX_GROUPS, min_rows=MIN_CASCADE_ROWS)

    def read(self, batch: ForwardBatch) -> StepShape:
        """The shape of a batch."""
        count = batch.num_decode
        chunks = len(batch.rows) - count
        groups = self._groups.find(batch).groups if self._cascade else ()
        padded = padded_size(self._cascade_sizes if groups else self._sizes, count) if not chunks else None
        lens = batch.query_lens[count:].astype(np.int64)
        before = batch.seq_lens[count:] - lens
        return StepShape(
            graph=padded is not None and self._captured,
            num_decode=count,
            decode_rows=padded if padded is not None else count,
            context_tokens=int(batch.seq_lens[:count].sum(dtype=np.int64)) - self._saved_tokens(groups),
            prefix_pairs=sum(len(group.members) * len(group.pages) for group in groups) * self._page_size,
            num_chunks=chunks,
            chunk_tokens=int(lens.sum()),
            chunk_pairs=int((lens * before + lens * (lens + 1) // 2).sum()),
            chunk_context_tokens=int(before.sum()),
        )

    def _saved_tokens(self, groups: tuple[PrefixGroup, ...]) -> int:
        return sum(group.saved_pages for group in groups) * self._page_size
