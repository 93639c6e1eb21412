"""The request table: rows, pages and the log of page writes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.builders import make_request
from worker.scheduler.request import NO_ROW
from worker.scheduler.rows import RequestTable
from worker.token_ids import pack_tokens


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


@pytest.fixture
def table() -> RequestTable:
    return RequestTable(max_rows=3, max_tokens=16, page_size=4)


def test_a_row_starts_with_the_requests_counters(table: RequestTable) -> None:
    request = make_request([1, 2], max_new_tokens=9, min_new_tokens=2, ignore_eos=True, stop_token_ids=(5,))
    request.refill(pack_tokens([1, 2, 3]))
    row = table.acquire(request)
    assert request.row == row and table.request(row) is request
    assert (table.num_outputs[row], table.num_launched[row], table.prompt_len[row]) == (1, 1, 2)
    assert (table.max_new[row], table.min_new[row]) == (9, 2)
    assert table.ignore_eos[row] and table.surely_goes_on[row] == 0 and not table.decoding[row]
    assert (table.num_used_rows, table.num_free_rows) == (1, 2)


def test_outputs_follow_the_prompt_and_survive_a_retraction(table: RequestTable) -> None:
    request = make_request([1, 2])
    rows = np.array([table.acquire(request)])
    for count, token in enumerate(range(100, 1400), 1):  # more than a row has room for at the start
        assert table.append_outputs(rows, np.array([token], np.int32)).tolist() == [count]
    assert table.key_of(request, 1) == pack_tokens([1])
    assert table.key_of(request, 1302) == pack_tokens([1, 2, *range(100, 1400)])
    with pytest.raises(AssertionError, match="fewer outputs than 1301"):
        table.key_of(request, 1303)
    request.refill(table.key_of(request, 1302))
    table.release(request)
    assert table.num_outputs_of(request) == 1300
    small = RequestTable(max_rows=1, max_tokens=16, page_size=4)
    small.acquire(request)
    assert small.num_outputs_of(request) == 1300 and small.key_of(request, 4) == pack_tokens([1, 2, 100, 101])


def test_a_released_row_is_recognised_by_its_epoch(table: RequestTable) -> None:
    first, second = make_request([1], "a"), make_request([2], "b")
    row = table.acquire(first)
    rows, epochs = np.array([row], np.int32), table.epoch[[row]]
    assert table.live(rows, epochs).tolist() == [True]
    table.release(first)
    assert first.row == NO_ROW
    assert table.acquire(second) == row
    assert table.live(rows, epochs).tolist() == [False]
    with pytest.raises(AssertionError, match="is not a's"):
        first.row = row
        table.release(first)


def test_decodable_are_rows_with_outputs_left_to_launch(table: RequestTable) -> None:
    rows = [table.acquire(make_request([1], str(n), max_new_tokens=2)) for n in range(3)]
    table.decoding[rows[:2]] = True
    table.num_launched[rows[0]] = 2
    assert table.decodable_rows().tolist() == [rows[1]]


def changes(table: RequestTable) -> set[tuple[int, ...]]:
    """The (row, index, page) of one call."""
    return {tuple(write) for write in table.take_writes().tolist()}


def test_page_writes_tell_the_present_state_once(table: RequestTable) -> None:
    other, row = table.acquire(make_request([1], "a")), table.acquire(make_request([1], "b"))
    table.set_pages(row, 0, pages(7, 8))
    table.set_pages(other, 0, pages(4))
    table.set_pages(row, 1, pages(9))
    table.append_page(np.array([row, other]), pages(5, 6))
    assert changes(table) == {(row, 0, 7), (row, 1, 9), (row, 2, 5), (other, 0, 4), (other, 1, 6)}
    assert table.pages_of(row).tolist() == [7, 9, 5]
    writes = table.take_writes()
    assert writes.shape == (0, 3) and writes.dtype == np.int32


def test_a_row_starts_with_its_cached_prefix(table: RequestTable) -> None:
    row = table.acquire(make_request(range(9)), pages(7, 8))
    assert table.pages_of(row).tolist() == [7, 8] and table.own_pages == 0
    assert (table.seq_len[row], table.computed_len[row], table.shared_pages[row]) == (8, 8, 2)
    assert changes(table) == {(row, 0, 7), (row, 1, 8)}


def test_writes_of_a_failed_step_are_sent_again_as_they_are_now(table: RequestTable) -> None:
    row = table.acquire(make_request([1]))
    table.set_pages(row, 0, pages(7, 8))
    lost = table.take_writes()
    table.set_pages(row, 1, pages(9))
    table.take_writes()
    table.rewrite(lost)
    assert changes(table) == {(row, 0, 7), (row, 1, 9)}


def test_a_new_page_is_due_when_all_are_full(table: RequestTable) -> None:
    rows = np.array([table.acquire(make_request([1], str(n))) for n in range(3)])
    for row, length in zip(rows, (3, 4, 5), strict=True):
        table.set_pages(row, 0, pages(*range(1, table.pages_missing(row, length) + 1)))
        table.seq_len[row] = length
    assert table.rows_opening_page(rows).tolist() == [rows[1]]
    assert table.pages_missing(rows[1], 13) == 3
    assert table.own_pages == 4
    table.shared_pages[rows[2]] = 1
    assert table.own_pages == 3


def test_pages_for_many_tokens_are_those_of_one_token_after_another() -> None:
    at_once, one_by_one = (RequestTable(max_rows=3, max_tokens=64, page_size=4) for _ in range(2))
    for table in (at_once, one_by_one):
        for rid, length in (("a", 3), ("b", 4), ("c", 6)):
            row = table.acquire(make_request([1] * length, rid))
            table.set_pages(row, 0, pages(*range(10 * row + 1, 10 * row + 1 + -(-length // 4))))
            table.seq_len[row] = length
        table.take_writes()
    rows = np.array([0, 2])
    counts = at_once.pages_for_more(rows, 7)
    assert counts.tolist() == [2, 2]
    at_once.append_pages(rows, counts, pages(101, 102, 103, 104))
    at_once.seq_len[rows] += 7
    assert at_once.pages_of(0).tolist() == [1, 101, 102] and at_once.pages_of(2).tolist() == [21, 22, 103, 104]
    assert at_once.pages_of(1).tolist() == [11]
    assert sorted(map(tuple, at_once.take_writes().tolist())) == [(0, 1, 101), (0, 2, 102), (2, 2, 103), (2, 3, 104)]
    for _ in range(7):
        opening = one_by_one.rows_opening_page(rows)
        one_by_one.append_page(opening, pages(*[99] * len(opening)))
        one_by_one.seq_len[rows] += 1
    assert one_by_one.num_pages.tolist() == at_once.num_pages.tolist()
    assert at_once.pages_for_more(rows, 3).tolist() == [1, 0]


def test_a_repeated_output_is_that_many_outputs(table: RequestTable) -> None:
    request = make_request([1, 2])
    rows = np.array([table.acquire(request)])
    table.append_outputs(rows, np.array([7], np.int32))
    table.repeat_output(rows, 9, 300)
    assert table.num_outputs_of(request) == 301
    assert table.key_of(request, 303) == pack_tokens([1, 2, 7, *[9] * 300])
