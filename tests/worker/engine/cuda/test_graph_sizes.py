from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.config import WorkerSettings
from worker.engine.cuda.graph_sizes import cascade_sizes, graph_sizes, padded_size, pass_sizes
from worker.engine.memory import GIB


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


def test_sizes_follow_the_settings_else_the_gpus_memory() -> None:
    def sizes(total_gib: int = 140, **settings: Any) -> tuple[int, ...]:
        chosen = WorkerSettings(model_path="none", **settings)
        return pass_sizes(chosen, total_bytes=total_gib * GIB, max_rows=300)

    assert sizes()[-1] == 256
    assert sizes(24)[-1] == 24
    assert sizes(cuda_graph_max_bs=8) == (1, 2, 4, 8)
    assert sizes(cuda_graph_bs=[4, 32]) == (4, 32)
    assert sizes(cuda_graph_max_bs=5, disable_cuda_graph_padding=True) == (1, 2, 3, 4, 5)
