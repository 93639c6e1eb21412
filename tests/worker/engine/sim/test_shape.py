"""What a batch's time depends on, read from real batches."""

from __future__ import annotations

from benchmarks.step_cases import BatchBuilder, Case, Sequence, cases
from tests.helpers.fake_runner import runner_info
from worker.engine.page_table import PageTable
from worker.engine.sim.shape import ShapeReader
from worker.engine.sim.step_time import StepShape

INFO = runner_info(num_pages=40_000, page_size=16, max_rows=512, context_len=8192, vocab_size=1000)


def read(
    case: Case, *, sizes: tuple[int, ...] = (1, 8, 64, 256), captured: bool = True, cascade: bool = True
) -> StepShape:
    table = PageTable(max_rows=INFO.max_rows, context_len=INFO.context_len, page_size=INFO.page_size)
    batch = BatchBuilder(INFO).batch(case)
    table.apply(batch.page_writes)
    return ShapeReader(table, sizes=sizes, captured=captured, cascade=cascade).read(batch)


def test_decodes_are_padded_to_the_next_graph() -> None:
    shape = read(Case("", (Sequence(1, 99),) * 20))
    assert (shape.graph, shape.num_decode, shape.decode_rows, shape.context_tokens) == (True, 20, 64, 2000)
    assert not read(Case("", (Sequence(1, 9),) * 20), sizes=(1, 8)).graph
    eager = read(Case("", (Sequence(1, 9),) * 20), captured=False)
    assert (eager.graph, eager.decode_rows) == (False, 64)
    assert read(Case("", (Sequence(1, 9),))).single


def test_chunks_need_no_graph_and_count_causal_pairs() -> None:
    shape = read(Case("", (Sequence(1, 9),) * 3, (Sequence(4, 0), Sequence(3, 10))))
    assert (shape.graph, shape.decode_rows, shape.num_chunks, shape.chunk_tokens) == (False, 3, 2, 7)
    assert shape.chunk_pairs == (1 + 2 + 3 + 4) + (11 + 12 + 13)
    assert shape.chunk_context_tokens == 10


def test_shared_prefixes_are_read_once_where_that_pays() -> None:
    groups = tuple(Sequence(1, 2048 + 31, 2048, group) for group in range(2) for _ in range(32))
    shape = read(Case("", groups))
    assert shape.context_tokens == 64 * 2080 - 2 * 31 * 2048
    assert shape.prefix_pairs == 64 * 2048
    assert read(Case("", groups), cascade=False).prefix_pairs == 0
    small = tuple(Sequence(1, 32 + 31, 32, 0) for _ in range(32))
    assert read(Case("", small)).prefix_pairs == 0


def test_every_measured_case_that_fits_has_its_own_pages() -> None:
    """The cases of benchmarks/step_times.py on a device of this size."""
    fitting = [case for case in cases() if case.fits(INFO, 600_000)]
    assert {case.kind for case in fitting} == {case.kind for case in cases()}
    for case in fitting:
        shape = read(case)
        assert shape.num_decode == len(case.decodes) and shape.num_chunks == len(case.chunks)
        assert (shape.prefix_pairs > 0) == case.kind.startswith("shared prefix")
