from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.cuda.cascade import CascadeCost, Grouping, alone, group_by_prefix

_PAGE = 4


def _table(*prefixes: list[int], own: int = 1) -> np.ndarray:
    """Page tables of sequences with these shared first pages and `own` pages of their own; stale zeros behind."""
    longest = max(map(len, prefixes)) + own
    pages = np.zeros((len(prefixes), longest), np.int32)
    fresh = 1000
    for i, prefix in enumerate(prefixes):
        row = [*prefix, *range(fresh, fresh + own)]
        fresh += own
        pages[i, : len(row)] = row
    return pages


def _lens(*prefixes: list[int], own: int = 1) -> np.ndarray:
    return np.array([(len(p) + own) * _PAGE for p in prefixes], np.int32)


_FREE = CascadeCost(fixed_tokens=0, per_prefix_token=0)


def _group(prefixes: list[list[int]], cost: CascadeCost = _FREE, max_groups: int = 8) -> Grouping:
    return group_by_prefix(
        _table(*prefixes),
        _lens(*prefixes),
        page_size=_PAGE,
        cost=cost,
        max_groups=max_groups,
    )


def _members(grouping: Grouping) -> list[list[int]]:
    return [group.members.tolist() for group in grouping.groups]


def test_sequences_with_equal_first_pages_form_a_group() -> None:
    grouping = _group([[1, 2, 3], [7], [1, 2, 3], [8, 9], [1, 2, 3]])
    assert _members(grouping) == [[0, 2, 4]]
    assert grouping.groups[0].pages.tolist() == [1, 2, 3]
    assert grouping.order.tolist() == [0, 2, 4, 3, 1]
    assert grouping.first_pages.tolist() == [3, 3, 3, 0, 0]
    assert grouping.num_grouped == 3


def test_subgroups_win_where_they_share_much_more() -> None:
    system, one, two = [1], [10, 11, 12, 13], [20, 21, 22, 23]
    assert _members(_group([system + one, system + two, system + one, system + two])) == [[0, 2], [1, 3]]


def test_the_whole_wins_where_the_common_part_is_long() -> None:
    system = list(range(1, 30))
    grouping = _group([[*system, 90], [*system, 90], [*system, 91], [*system, 92]])
    assert _members(grouping) == [[0, 1, 2, 3]]
    assert len(grouping.groups[0].pages) == len(system)


def test_the_best_groups_are_kept() -> None:
    prefixes = [[1, 2], [1, 2], [5, 6, 7], [5, 6, 7], [8], [8]]
    assert _members(_group(prefixes)) == [[2, 3], [0, 1], [4, 5]]
    assert _members(_group(prefixes, max_groups=1)) == [[2, 3]]


def test_groups_that_do_not_pay_are_dropped() -> None:
    prefixes = [[1, 2], [1, 2], [5, 6, 7], [5, 6, 7]]  # together they spare 5 pages
    assert len(_group(prefixes, CascadeCost(5 * _PAGE - 1, 0)).groups) == 2
    assert _group(prefixes, CascadeCost(5 * _PAGE, 0)).groups == ()


def test_a_long_prefix_of_few_is_dropped_where_it_holds_up_the_others() -> None:
    many, few = [[1, 2]] * 6, [list(range(10, 20))] * 2  # spare 10 pages each
    assert _members(_group(many + few, CascadeCost(0, 2))) == [list(range(6))]


def test_the_newest_page_is_never_shared() -> None:
    pages = np.array([[1, 2], [1, 2]], np.int32)
    lens = np.array([8, 5], np.int32)  # the second page holds the newest token of both
    grouping = group_by_prefix(pages, lens, page_size=_PAGE, cost=_FREE, max_groups=8)
    assert grouping.first_pages.tolist() == [1, 1]


def test_stale_pages_behind_a_sequence_do_not_count() -> None:
    pages = np.array([[1, 2, 3, 4], [1, 2, 3, 4]], np.int32)
    lens = np.array([16, 6], np.int32)
    grouping = group_by_prefix(pages, lens, page_size=_PAGE, cost=_FREE, max_groups=8)
    assert grouping.groups[0].pages.tolist() == [1]


def test_alone_the_longest_come_first() -> None:
    grouping = alone(np.array([5, 9, 5, 12], np.int32))
    assert grouping.order.tolist() == [3, 1, 0, 2]
    assert grouping.groups == () and grouping.num_grouped == 0
    assert len(alone(np.empty(0, np.int32)).order) == 0


def test_in_a_group_too() -> None:
    pages = np.array([[1, 2, 9], [1, 3, 0], [7, 0, 0]], np.int32)
    grouping = group_by_prefix(pages, np.array([5, 8, 3], np.int32), page_size=_PAGE, cost=_FREE, max_groups=8)
    assert grouping.order.tolist() == [1, 0, 2]
    assert grouping.first_pages.tolist() == [1, 1, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=12))
def test_groups_are_disjoint_and_share_what_they_claim(paths: list[list[int]]) -> None:
    # as in a radix tree: a page is named by its whole path
    names: dict[tuple[int, ...], int] = {}
    prefixes = [[names.setdefault(tuple(p[: i + 1]), len(names) + 1) for i in range(len(p))] for p in paths]
    pages, lens = _table(*prefixes), _lens(*prefixes)
    grouping = group_by_prefix(pages, lens, page_size=_PAGE, cost=_FREE, max_groups=8)
    assert sorted(grouping.order.tolist()) == list(range(len(paths)))
    start = 0
    for group in grouping.groups:
        members = grouping.order[start : start + len(group.members)]
        assert sorted(members.tolist()) == sorted(group.members.tolist()) and len(members) > 1
        for member in members:
            assert pages[member, : len(group.pages)].tolist() == group.pages.tolist()
            assert len(group.pages) * _PAGE < lens[member]
        assert (grouping.first_pages[start : start + len(members)] == len(group.pages)).all()
        start += len(members)
    assert start == grouping.num_grouped
    assert not grouping.first_pages[start:].any()
