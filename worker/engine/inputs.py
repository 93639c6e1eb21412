"""Turns a ForwardBatch into the flat arrays that a pass reads."""

from __future__ import annotations

import numpy as np

from worker.attention.base import Int64s, PassMetadata
from worker.engine.batch import ForwardBatch
from worker.engine.page_table import PageTable


def positions(batch: ForwardBatch) -> Int64s:
    """int64 [T]: the position in its sequence of each token of the pass."""
    first = batch.seq_lens - batch.query_lens
    starts = np.cumsum(batch.query_lens) - batch.query_lens
    shifts: Int64s = np.repeat((first - starts).astype(np.int64), batch.query_lens)
    return np.arange(batch.num_tokens, dtype=np.int64) + shifts


def pass_metadata(batch: ForwardBatch, table: PageTable, token_positions: Int64s) -> PassMetadata:
    """What attention needs; the batch's page writes must have been applied."""
    rows = np.repeat(batch.rows, batch.query_lens)
    pages = table.pages[rows, token_positions // table.page_size]
    return PassMetadata(
        rows=batch.rows,
        query_lens=batch.query_lens,
        seq_lens=batch.seq_lens,
        num_decode=batch.num_decode,
        write_slots=pages.astype(np.int64) * table.page_size + token_positions % table.page_size,
        page_table=table.pages,
        page_size=table.page_size,
    )


def sampled_tokens(batch: ForwardBatch) -> Int64s:
    """int64 [S]: which of the pass's tokens are sampled from, the last of each sequence with `samples`."""
    return (np.cumsum(batch.query_lens) - 1)[batch.samples].astype(np.int64)
