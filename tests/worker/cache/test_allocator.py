"""Pages are handed out once, and come back once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.cache.allocator import PageAllocator


def test_hands_out_every_page_but_page_zero() -> None:
    allocator = PageAllocator(5)
    assert sorted(allocator.alloc(5).tolist()) == [1, 2, 3, 4, 5]
    assert allocator.num_free == 0


def test_more_than_free_is_an_assertion() -> None:
    allocator = PageAllocator(3)
    allocator.alloc(2)
    with pytest.raises(AssertionError, match="2 pages wanted, 1 free"):
        allocator.alloc(2)


@pytest.mark.parametrize("pages", [[1], [3, 1]], ids=["free already", "one of several"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_page_freed_twice_is_never_handed_out(pages: list[int], settled: bool) -> None:
    allocator = PageAllocator(3)
    taken = allocator.alloc(3)
    allocator.free(taken[taken == 1])
    if settled:
        allocator.free_pages()
    allocator.free(np.array(pages, np.int32))
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.alloc(1)


@pytest.mark.parametrize("pages", [[2, 1, 2], [2, 2, 2, 2]], ids=["some", "more than there are"])
def test_a_page_freed_twice_in_one_call_is_never_handed_out(pages: list[int]) -> None:
    allocator = PageAllocator(3)
    allocator.alloc(3)
    allocator.free(np.array(pages, np.int32))
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.alloc(1)


@pytest.mark.parametrize("page", [0, 4, -1])
def test_freeing_a_page_outside_the_pool_is_an_assertion(page: int) -> None:
    allocator = PageAllocator(3)
    allocator.alloc(3)
    allocator.free(np.array([page], np.int32))
    with pytest.raises(AssertionError, match="outside the pool"):
        allocator.free_pages()


def test_what_alloc_returned_does_not_change_later() -> None:
    allocator = PageAllocator(4)
    first = allocator.alloc(2)
    before = first.tolist()
    allocator.free(allocator.alloc(1))
    allocator.free(first)
    allocator.alloc(4)
    assert first.tolist() == before


@given(st.lists(st.integers(-6, 6), max_size=40))
def test_free_and_taken_pages_partition_the_pool(moves: list[int]) -> None:
    allocator = PageAllocator(10)
    held: list[int] = []
    for move in moves:
        if move > 0:
            got = allocator.alloc(min(move, allocator.num_free)).tolist()
            assert not set(got) & set(held)
            held += got
        else:
            back, held = held[:-move], held[-move:]
            allocator.free(np.array(back, np.int32))
        assert allocator.num_free == 10 - len(held)
    allocator.free(np.array(held, np.int32))
    assert sorted(allocator.alloc(10).tolist()) == list(range(1, 11))
