"""What a start says when the GPU's memory does not suffice, on a GPU that is made of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from common.errors import UserError
from tests.worker.engine.test_memory import LLAMA_8B
from worker.config import WorkerSettings
from worker.engine.cuda import graphs as graphs_module
from worker.engine.cuda.graphs import DecodeGraphs, GraphKey
from worker.engine.cuda.memory import GpuMemory, no_room_for_weights, size_pool
from worker.engine.memory import GIB, PoolSize

TOTAL = 140 * GIB
WEIGHTS = 15 * GIB


def size(monkeypatch: pytest.MonkeyPatch, *, weights: int = WEIGHTS, free: int = TOTAL, **settings: Any) -> PoolSize:
    monkeypatch.setattr(GpuMemory, "now", staticmethod(lambda device: GpuMemory(free - weights, TOTAL)))
    return size_pool(
        WorkerSettings(model_path="m", **settings),
        LLAMA_8B,
        GpuMemory(free, TOTAL),
        device=torch.device("cuda"),
        page_size=16,
        element_bytes=2,
    )


def test_the_pool_gets_the_static_share_less_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = size(monkeypatch, mem_fraction_static=0.9).num_pages * 16
    assert tokens == pytest.approx((0.9 * TOTAL - WEIGHTS) / 131072, abs=16)
    assert size(monkeypatch, mem_fraction_static=0.9, max_total_tokens=1600).num_pages == 100
    assert size(monkeypatch).num_pages > size(monkeypatch, free=100 * GIB).num_pages > 0


def test_a_share_too_small_for_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as caught:
        size(monkeypatch, mem_fraction_static=0.1)
    assert str(caught.value) == (
        "The weights take 15.0 GiB, more than --mem-fraction-static 0.1 leaves of 140.0 GiB; raise it or serve a "
        "smaller model."
    )


def test_a_share_that_just_holds_the_weights_leaves_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="less than two pages of 16; .*--mem-fraction-static"):
        size(monkeypatch, mem_fraction_static=WEIGHTS / TOTAL + 1e-5)


def test_weights_larger_than_the_gpu() -> None:
    assert no_room_for_weights(GpuMemory(100 * GIB, TOTAL)) == (
        "--model-path: the weights do not fit into the 100.0 GiB that are free of the GPU's 140.0 GiB; serve a smaller "
        "model, or end what else runs on this GPU."
    )


def _fail_from(size_that_fails: int) -> Callable[[GraphKey], Callable[[], None]]:
    def run(key: GraphKey) -> Callable[[], None]:
        def compute() -> None:
            if key.size >= size_that_fails:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        return compute

    return run


def test_graphs_that_find_no_memory_name_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(graphs_module, "_captured", lambda compute, memory: compute())
    seen: list[float] = []
    with pytest.raises(UserError) as caught:
        DecodeGraphs((1, 2, 64), ()).capture(_fail_from(64), lambda what, share: seen.append(share))
    assert str(caught.value) == (
        "There is not enough GPU memory for the CUDA graph of batch size 64; lower --mem-fraction-static or "
        "--cuda-graph-max-bs, or use --disable-cuda-graph."
    )
    DecodeGraphs((1, 2), ()).capture(_fail_from(64), lambda what, share: seen.append(share))
    assert seen == [0.0, 0.0, 0.5, 1.0]
