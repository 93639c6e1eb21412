"""Which batch sizes get a CUDA graph. A decode of another size is padded up to the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from worker.config import WorkerSettings
from worker.engine.memory import gpu_defaults

# Prefix groups pay with many rows only, where a little more padding costs nothing.
_CASCADE_STEP = 64


def pass_sizes(settings: WorkerSettings, *, total_bytes: int, max_rows: int) -> tuple[int, ...]:
    """Ascending batch sizes that decodes are padded to on a GPU with `total_bytes`; each is captured, unless graphs are
    off."""
    return graph_sizes(
        max_size=settings.cuda_graph_max_bs or gpu_defaults(total_bytes).max_graph_batch_size,
        asked=settings.cuda_graph_bs,
        padding=not settings.disable_cuda_graph_padding,
        max_rows=max_rows,
    )


def graph_sizes(*, max_size: int, asked: Sequence[int] | None, padding: bool, max_rows: int) -> tuple[int, ...]:
    """Ascending batch sizes to capture: `asked`, or SGLang's list up to `max_size`, none above `max_rows`.

    Without `padding` every size up to the largest has its own graph.
    """
    largest = max(asked) if asked else max_size
    if not padding:
        sizes: Iterable[int] = range(1, largest + 1)
    elif asked:
        sizes = asked
    else:
        sizes = [*_standard(largest), largest]
    bounded = {size for size in sizes if size <= max_rows}
    if padding and largest > max_rows:
        bounded.add(max_rows)
    return tuple(sorted(bounded))


def cascade_sizes(sizes: Sequence[int], min_rows: int) -> tuple[int, ...]:
    """Batch sizes among `sizes` that get a second graph, with attention by prefix groups: a coarse subset."""
    chosen = {size for size in sizes if size >= min_rows and size % _CASCADE_STEP == 0}
    if sizes and sizes[-1] >= min_rows:
        chosen.add(sizes[-1])
    return tuple(sorted(chosen))


def padded_size(sizes: Sequence[int], batch_size: int) -> int | None:
    """The smallest of ascending `sizes` that holds the batch, None if none does."""
    at = bisect_left(sizes, batch_size)
    return sizes[at] if at < len(sizes) else None


def _standard(largest: int) -> list[int]:
    """Dense where a step is short, so that padding never costs much of it."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, largest + 1, 32)]
    return [size for size in sizes if size <= largest]
