from __future__ import annotations

import numpy as np

from worker.engine.batch import ForwardBatch
from worker.engine.cuda.cascade import CascadeCost
from worker.engine.cuda.prefix_groups import PrefixGroups
from worker.engine.page_table import PageTable

_PAGE = 4


def _batch(rows: list[int], lens: list[int], writes: list[tuple[int, int, int]] | None = None) -> ForwardBatch:
    return ForwardBatch(
        step_id=0,
        rows=np.array(rows, np.int32),
        query_lens=np.ones(len(rows), np.int32),
        seq_lens=np.array(lens, np.int32),
        num_decode=len(rows),
        prefill_ids=np.empty(0, np.int32),
        samples=np.ones(len(rows), np.bool_),
        page_writes=np.array(writes or np.empty((0, 3)), np.int32).reshape(-1, 3),
        admissions=(),
    )


def _setup(min_rows: int = 2) -> tuple[PageTable, PrefixGroups]:
    table = PageTable(max_rows=4, context_len=64, page_size=_PAGE)
    table.apply(np.array([(r, i, i + 1) for r in (0, 1, 2) for i in range(3)], np.int32))
    table.apply(np.array([(r, 3, 50 + r) for r in (0, 1, 2)], np.int32))
    return table, PrefixGroups(table, cost=CascadeCost(0, 0), max_groups=4, min_rows=min_rows)


def test_groups_are_kept_while_nothing_can_have_changed() -> None:
    table, groups = _setup()
    first = groups.find(_batch([0, 1, 2], [13, 13, 13]))
    assert [g.members.tolist() for g in first.groups] == [[0, 1, 2]]
    assert groups.find(_batch([0, 1, 2], [14, 14, 14])) is first
    appended = [(r, 4, 60 + r) for r in (0, 1, 2)]
    table.apply(np.array(appended, np.int32))
    assert groups.find(_batch([0, 1, 2], [17, 17, 17], appended)) is first


def test_another_set_of_rows_is_grouped_anew() -> None:
    _, groups = _setup()
    groups.find(_batch([0, 1, 2], [13, 13, 13]))
    assert [g.members.tolist() for g in groups.find(_batch([0, 2], [14, 14])).groups] == [[0, 1]]


def test_a_rewritten_page_is_noticed() -> None:
    table, groups = _setup()
    groups.find(_batch([0, 1, 2], [13, 13, 13]))
    write = (1, 0, 77)
    table.apply(np.array([write], np.int32))
    found = groups.find(_batch([0, 1, 2], [14, 14, 14], [write]))
    assert [g.members.tolist() for g in found.groups] == [[0, 2]]


def test_a_page_rewritten_by_a_step_without_decodes_is_noticed() -> None:
    table, groups = _setup()
    groups.find(_batch([0, 1, 2], [13, 13, 13]))
    write = (1, 0, 77)
    table.apply(np.array([write], np.int32))
    groups.find(_batch([], [], [write]))
    found = groups.find(_batch([0, 1, 2], [14, 14, 14]))
    assert [g.members.tolist() for g in found.groups] == [[0, 2]]


def test_writes_to_other_rows_do_not_matter() -> None:
    table, groups = _setup()
    first = groups.find(_batch([0, 1], [13, 13]))
    write = (3, 0, 77)
    table.apply(np.array([write], np.int32))
    assert groups.find(_batch([0, 1], [14, 14], [write])) is first


def test_small_batches_are_not_looked_at() -> None:
    _, groups = _setup(min_rows=3)
    assert groups.find(_batch([0, 1], [13, 13])).groups == ()
