"""CUDA graphs of decode passes: one for each batch size, and for some a second one with attention by prefix groups."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker.engine.cuda.graph_sizes import padded_size
from worker.engine.out_of_memory import told_to_the_user
from worker.models.progress import Progress


@dataclass(frozen=True, slots=True)
class GraphKey:
    """A decode pass of `size` sequences, padding included; `cascade`: with prefix groups."""

    size: int
    cascade: bool


class DecodeGraphs:
    """The sizes of decode passes, and the graphs of those captured. A graph reads and writes memory that stays in
    place; the caller fills it before `replay`."""

    def __init__(self, plain_sizes: Sequence[int], cascade_sizes: Sequence[int]) -> None:
        self._sizes = {False: tuple(plain_sizes), True: tuple(cascade_sizes)}
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}

    def find(self, batch_size: int, *, cascade: bool) -> GraphKey | None:
        """The pass that a decode batch is padded to, None if it is larger than all."""
        size = padded_size(self._sizes[cascade], batch_size)
        return None if size is None else GraphKey(size, cascade)

    def capture(self, run: Callable[[GraphKey], Callable[[], object]], progress: Progress) -> None:
        """Capture all, largest first, so that smaller ones fit into the memory of larger ones. `run(key)` prepares a
        pass of padding and returns what computes it."""
        keys = [GraphKey(size, cascade) for cascade, sizes in self._sizes.items() for size in sizes]
        keys.sort(key=lambda key: (-key.size, key.cascade))
        memory = torch.cuda.graph_pool_handle()
        for done, key in enumerate(keys):
            progress("batch sizes", done / len(keys))
            with told_to_the_user(
                f"There is not enough GPU memory for the CUDA graph of batch size {key.size}; lower "
                "--mem-fraction-static or --cuda-graph-max-bs, or use --disable-cuda-graph."
            ):
                self._graphs[key] = _captured(run(key), memory)
        progress("batch sizes", 1.0)

    def replay(self, key: GraphKey) -> bool:
        """Launch the pass, if it was captured."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
        return graph is not None

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()


def obstacle_to_capture(compute: Callable[[], object]) -> str | None:
    """Why no graph can hold what `compute` launches: torch's words where it waits for the GPU, None if it does not."""
    compute()  # what is done once may wait
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is new
        torch.cuda.set_sync_debug_mode("error")
    try:
        compute()
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def _captured(compute: Callable[[], object], memory: Any) -> torch.cuda.CUDAGraph:
    for _ in range(2):  # lets libraries and the compiler do what they do once
        compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        compute()
    return graph
