"""CUDA graphs of decode passes: one for each batch size, and for some a second one with attention by prefix groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.errors import UserError
from worker.engine.cuda.graph_sizes import padded_size
from worker.models.progress import Progress


@dataclass(frozen=True, slots=True)
class GraphKey:
    """A decode pass of `size` sequences, padding included; `cascade`: with prefix groups."""

    size: int
    cascade: bool


class DecodeGraphs:
    """Captured passes. They read and write memory that stays in place; the caller fills it before `replay`."""

    def __init__(self, plain_sizes: Sequence[int], cascade_sizes: Sequence[int]) -> None:
        self._sizes = {False: tuple(plain_sizes), True: tuple(cascade_sizes)}
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}

    def find(self, batch_size: int, *, cascade: bool) -> GraphKey | None:
        """The graph for a decode batch, None if there is none that fits."""
        size = padded_size(self._sizes[cascade], batch_size)
        return None if size is None else GraphKey(size, cascade)

    def capture(self, run: Callable[[GraphKey], Callable[[], None]], progress: Progress) -> None:
        """Capture all, largest first, so that smaller ones fit into the memory of larger ones. `run(key)` prepares a
        pass of padding and returns what computes it."""
        keys = [GraphKey(size, cascade) for cascade, sizes in self._sizes.items() for size in sizes]
        keys.sort(key=lambda key: (-key.size, key.cascade))
        memory = torch.cuda.graph_pool_handle()
        for done, key in enumerate(keys):
            progress("batch sizes", done / len(keys))
            try:
                self._graphs[key] = _captured(run(key), memory)
            except torch.cuda.OutOfMemoryError:
                raise UserError(
                    f"There is not enough GPU memory for the CUDA graph of batch size {key.size}; lower "
                    "--mem-fraction-static or --cuda-graph-max-bs, or use --disable-cuda-graph."
                ) from None
        progress("batch sizes", 1.0)

    def replay(self, key: GraphKey) -> None:
        """Launch the pass."""
        self._graphs[key].replay()

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()


def _captured(compute: Callable[[], None], memory: Any) -> torch.cuda.CUDAGraph:
    for _ in range(2):  # lets libraries and the compiler do what they do once
        compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        compute()
    return graph
