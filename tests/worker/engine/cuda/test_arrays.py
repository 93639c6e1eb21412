from __future__ import annotations

import numpy as np

from worker.engine.cuda.arrays import decode_arrays, page_lists, prefix_lists, running_sums


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_decodes_are_padded_with_the_dummy_row() -> None:
    arrays = decode_arrays(_ints(5, 2), _ints(9, 4), _ints(1, 0), page_size=4, size=4, dummy_row=99)
    assert arrays.rows.tolist() == [5, 2, 99, 99]
    assert arrays.seq_lens.tolist() == [9, 4, 1, 1]
    assert arrays.first_pages.tolist() == [1, 0, 0, 0]
    assert arrays.indptr.tolist() == [0, 2, 3, 4, 5]  # 3 pages less the shared one, 1, and one each of padding
    assert arrays.last_page_lens.tolist() == [1, 4, 1, 1]
    assert arrays.own_lens.tolist() == [5, 4, 1, 1]
    assert all(a.dtype == np.int32 for a in (arrays.indptr, arrays.last_page_lens, arrays.own_lens))


def test_no_decodes() -> None:
    arrays = decode_arrays(_ints(), _ints(), _ints(), page_size=4, size=0, dummy_row=99)
    assert len(arrays.rows) == 0 and arrays.indptr.tolist() == [0]


def test_page_lists_of_chunks() -> None:
    table = np.arange(30, dtype=np.int32).reshape(3, 10)
    lists = page_lists(table, _ints(2, 0), _ints(3, 4), _ints(9, 4), 4)
    assert lists.query_indptr.tolist() == [0, 3, 7]
    assert lists.indptr.tolist() == [0, 3, 4]
    assert lists.indices.tolist() == [20, 21, 22, 0]
    assert lists.last_page_lens.tolist() == [1, 4]
    assert lists.kv_lens.tolist() == [9, 4]


def test_prefix_lists_are_padded_with_empty_groups() -> None:
    lists = prefix_lists([(3, _ints(7, 8)), (2, _ints(9))], num_groups=4, queries_per_row=2, page_size=16)
    assert lists.query_indptr.tolist() == [0, 6, 10, 10, 10]
    assert lists.indptr.tolist() == [0, 2, 3, 3, 3]
    assert lists.indices.tolist() == [7, 8, 9]
    assert lists.kv_lens.tolist() == [32, 16, 0, 0]
    assert lists.kv_lens.dtype == np.int32


def test_no_prefix_groups() -> None:
    lists = prefix_lists([], num_groups=2, queries_per_row=4, page_size=16)
    assert lists.query_indptr.tolist() == [0, 0, 0] and len(lists.indices) == 1


def test_running_sums() -> None:
    assert running_sums(_ints(2, 3)).tolist() == [0, 2, 5]
    assert running_sums(_ints()).tolist() == [0]
