from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from worker.engine.cuda.graph_sizes import cascade_sizes, graph_sizes, padded_size


def test_standard_list() -> None:
    sizes = graph_sizes(max_size=512, asked=None, padding=True, max_rows=4096)
    assert sizes[:8] == (1, 2, 4, 8, 12, 16, 24, 32)
    assert sizes[-4:] == (464, 480, 496, 512)
    assert len(sizes) == 52


def test_the_largest_is_always_there() -> None:
    assert graph_sizes(max_size=150, asked=None, padding=True, max_rows=4096)[-2:] == (144, 150)
    assert graph_sizes(max_size=512, asked=None, padding=True, max_rows=100)[-2:] == (96, 100)


def test_asked_sizes_and_no_padding() -> None:
    assert graph_sizes(max_size=512, asked=[8, 2, 8], padding=True, max_rows=4096) == (2, 8)
    assert graph_sizes(max_size=5, asked=None, padding=False, max_rows=4) == (1, 2, 3, 4)


@pytest.mark.parametrize("asked", [[], [0, 4]])
def test_impossible_sizes_are_refused(asked: list[int]) -> None:
    with pytest.raises(UserError, match="--cuda-graph-bs"):
        graph_sizes(max_size=8, asked=asked, padding=True, max_rows=8)


@given(st.integers(1, 600), st.integers(1, 700))
def test_padding_is_the_smallest_that_fits(max_size: int, batch: int) -> None:
    sizes = graph_sizes(max_size=max_size, asked=None, padding=True, max_rows=4096)
    size = padded_size(sizes, batch)
    assert (size is None) == (batch > max_size)
    if size is not None:
        assert size >= batch
        assert not any(batch <= other < size for other in sizes)


def test_cascade_sizes_are_a_coarse_subset() -> None:
    sizes = graph_sizes(max_size=200, asked=None, padding=True, max_rows=4096)
    assert cascade_sizes(sizes, 16) == (64, 128, 192, 200)
    assert cascade_sizes(sizes, 300) == ()
    assert cascade_sizes((), 16) == ()
