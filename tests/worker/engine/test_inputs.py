"""Positions, slots and sampled tokens of a batch, against loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine import inputs
from worker.engine.batch import ForwardBatch
from worker.engine.page_table import PageTable

CONTEXT = 40

sequences = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 20), st.booleans()), min_size=1, max_size=6
)  # (cached, new, sampled)


@given(sequences, st.integers(0, 3), st.sampled_from([1, 4, 7]), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_flat_arrays(batch: list[tuple[int, int, bool]], num_decode: int, page_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = [(c, 1, True) if i < num_decode else (c, n, s) for i, (c, n, s) in enumerate(batch)]
    table = PageTable(max_rows=8, context_len=CONTEXT, page_size=page_size)
    writes = [(r, i, 1 + r * 100 + i) for r in range(8) for i in range(-(-CONTEXT // page_size))]
    rows = rng.permutation(8)[: len(batch)].astype(np.int32)
    forward = ForwardBatch(
        step_id=0,
        rows=rows,
        query_lens=np.array([n for _, n, _ in batch], np.int32),
        seq_lens=np.array([c + n for c, n, _ in batch], np.int32),
        num_decode=min(num_decode, len(batch)),
        prefill_ids=np.zeros(sum(n for _, n, _ in batch[num_decode:]), np.int32),
        samples=np.array([s for _, _, s in batch]),
        page_writes=np.array(writes, np.int32),
        admissions=(),
    )
    table.apply(forward.page_writes)

    expected, slots, sampled, end = [], [], [], 0
    for row, (cached, new, samples) in zip(rows.tolist(), batch, strict=True):
        expected += range(cached, cached + new)
        slots += [(1 + row * 100 + p // page_size) * page_size + p % page_size for p in range(cached, cached + new)]
        end += new
        sampled += [end - 1] if samples else []

    positions = inputs.positions(forward)
    assert positions.dtype == np.int64 and positions.tolist() == expected
    assert inputs.pass_metadata(forward, table, positions).write_slots.tolist() == slots
    assert inputs.sampled_tokens(forward).tolist() == sampled


def test_later_page_writes_win() -> None:
    table = PageTable(max_rows=2, context_len=8, page_size=4)
    table.apply(np.array([(1, 0, 5), (1, 1, 6), (1, 0, 9)], np.int32))
    table.apply(np.zeros((0, 3), np.int32))
    assert table.pages.tolist() == [[0, 0], [9, 6]]
