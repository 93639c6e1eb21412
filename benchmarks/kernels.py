"""Times of the GPU kernels a step is made of, beside what they reach: `python -m benchmarks.kernels`.

Llama-3-8B's shapes, bf16, random inputs, pages in random order, medians of graph replays over several layers' data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.arguments import Arguments, run
from worker.attention.flashinfer_kernels import PagedAttention, PageIndex, Workspace, pinned_plan_buffer
from worker.layers.cuda.activation import silu_and_mul
from worker.layers.cuda.cublas_lt import WideProducts
from worker.layers.cuda.gemv import GemvTile, gemv
from worker.layers.cuda.merge import merge_prefix
from worker.layers.cuda.norm import add_rms_norm
from worker.layers.cuda.paged_decode import paged_decode

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
HIDDEN, INNER = 4096, 14_336
LAYERS = 4  # sets of data that take turns, so that no cache holds them
KV_BYTES = 2 * KV_HEADS * HEAD_DIM * 2  # a token and layer
PRODUCTS = {"qkv": (6144, HIDDEN), "o": (HIDDEN, HIDDEN), "gate-up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
DEVICE = torch.device("cuda")

Launch = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel at one size: `rate` in `unit`, TB/s of the bytes it must move or TFLOP/s."""

    kernel: str
    size: str
    us: float
    rate: float
    unit: str


def median_us(launch: Launch, calls: int = 8, replays: int = 11) -> float:
    """Median time of a call, over replays of a graph of `calls` calls."""
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            launch(i)
    times = []
    for _ in range(replays + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    return float(np.median(times[1:]))


def moved(kernel: str, size: str, num_bytes: float, us: float) -> Timing:
    return Timing(kernel, size, round(us, 1), round(num_bytes / us / 1e6, 2), "TB/s")


def computed(kernel: str, size: str, operations: float, us: float) -> Timing:
    return Timing(kernel, size, round(us, 1), round(operations / us / 1e6), "TFLOP/s")


def _ints(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=DEVICE)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def _caches(num_pages: int) -> tuple[list[torch.Tensor], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """K and V of LAYERS layers, and the pages 1 .. num_pages in random order."""
    caches = [_normal(2, num_pages + 1, PAGE, KV_HEADS, HEAD_DIM) for _ in range(LAYERS)]
    return caches, (np.random.default_rng().permutation(num_pages) + 1).astype(np.int32)


def decodes() -> Iterator[Timing]:
    """Our kernel and flashinfer's, over own pages only."""
    flashinfer = _kernel("fa2", HEADS)
    space = Workspace(DEVICE, float_bytes=2**28)
    for rows, length in ((512, 192), (512, 1280), (233, 1592), (64, 1000), (16, 4000), (1, 384)):
        pages_each = -(-length // PAGE)
        caches, pages = _caches(rows * pages_each)
        indptr = np.arange(rows + 1, dtype=np.int32) * pages_each
        index = PageIndex(
            _ints(np.arange(rows + 1)), _ints(indptr), _ints(pages), _ints([(length - 1) % PAGE + 1] * rows)
        )
        q = _normal(rows, HEADS, HEAD_DIM)
        out, lse = torch.empty_like(q), torch.empty((rows, HEADS), device=DEVICE)
        handle = flashinfer.plan(
            space,
            pinned_plan_buffer(),
            query_indptr=np.arange(rows + 1, dtype=np.int32),
            indptr=indptr,
            kv_lens=np.full(rows, length, np.int32),
            num_queries=rows,
            causal=False,
            fixed_shape=rows <= flashinfer.max_split_decodes,
        )

        def theirs(i: int) -> None:
            k, v = caches[i % LAYERS]  # noqa: B023 called before the next round
            flashinfer.run(space, handle, q, k, v, index, out, lse, causal=False)  # noqa: B023

        def ours(i: int) -> None:
            k, v = caches[i % LAYERS]  # noqa: B023
            paged_decode(q, k, v, index.indptr, index.indices, index.last_page_lens, out, lse)  # noqa: B023

        size, num_bytes = f"{rows} x {length} tokens", rows * length * KV_BYTES
        yield moved("decode, flashinfer fa2", size, num_bytes, median_us(theirs))
        yield moved("decode, paged_decode", size, num_bytes, median_us(ours))


def chunks() -> Iterator[Timing]:
    """Prefill attention: (sequences, new tokens, tokens in all)."""
    kernel, space = _kernel("fa3", HEADS), Workspace(DEVICE)
    for count, queries, length in ((2, 1024, 1024), (8, 1024, 1024), (1, 2048, 8192), (16, 128, 2176)):
        pages_each = -(-length // PAGE)
        caches, pages = _caches(count * pages_each)
        query_indptr = np.arange(count + 1, dtype=np.int32) * queries
        indptr = np.arange(count + 1, dtype=np.int32) * pages_each
        index = PageIndex(_ints(query_indptr), _ints(indptr), _ints(pages), _ints([(length - 1) % PAGE + 1] * count))
        q = _normal(count * queries, HEADS, HEAD_DIM)
        out = torch.empty_like(q)
        handle = kernel.plan(
            space,
            pinned_plan_buffer(),
            query_indptr=query_indptr,
            indptr=indptr,
            kv_lens=np.full(count, length, np.int32),
            num_queries=len(q),
            causal=True,
        )

        def run(i: int) -> None:
            k, v = caches[i % LAYERS]  # noqa: B023
            kernel.run(space, handle, q, k, v, index, out, None, causal=True)  # noqa: B023

        pairs = count * queries * (length - (queries - 1) / 2)
        yield computed(
            "prefill, flashinfer fa3", f"{count} x {queries} of {length}", 4 * HEADS * HEAD_DIM * pairs, median_us(run)
        )


def prefixes() -> Iterator[Timing]:
    """Prefix groups: (groups, members, shared tokens); the prefix's part alone, and the merge."""
    kernel, space = _kernel("fa3", KV_HEADS), Workspace(DEVICE)
    for groups, members, length in ((8, 64, 2048), (8, 64, 512), (16, 16, 512), (1, 256, 256)):
        rows, per_row = groups * members, HEADS // KV_HEADS
        caches, pages = _caches(groups * length // PAGE)
        query_indptr = np.arange(groups + 1, dtype=np.int32) * members * per_row
        indptr = np.arange(groups + 1, dtype=np.int32) * (length // PAGE)
        index = PageIndex(_ints(query_indptr), _ints(indptr), _ints(pages), _ints([PAGE] * groups))
        q = _normal(rows * per_row, KV_HEADS, HEAD_DIM)
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=DEVICE)
        own, own_lse = _normal(rows, HEADS, HEAD_DIM), torch.randn((rows, HEADS), device=DEVICE)
        grouped = _ints([rows])
        handle = kernel.plan(
            space,
            pinned_plan_buffer(),
            query_indptr=query_indptr,
            indptr=indptr,
            kv_lens=np.full(groups, length, np.int32),
            num_queries=len(q),
            causal=False,
        )

        def run(i: int) -> None:
            k, v = caches[i % LAYERS]  # noqa: B023
            kernel.run(space, handle, q, k, v, index, out, lse, causal=False)  # noqa: B023

        def merge(i: int) -> None:
            merge_prefix(own, own_lse, out.view_as(own), lse.view_as(own_lse), grouped, KV_HEADS)  # noqa: B023

        size = f"{groups} x {members}, {length} shared"
        yield computed("prefix, fa3 by KV head", size, 4 * HEADS * HEAD_DIM * rows * length, median_us(run))
        yield moved("merge", size, 3 * rows * HEADS * HEAD_DIM * 2, median_us(merge))


def products() -> Iterator[Timing]:
    """cuBLAS for many rows, also with our choice of algorithm; for one row, our kernel as a lone decode uses it."""
    wide = WideProducts()
    for rows in (1, 64, 233, 512, 2048, 8192):
        for name, (out_size, in_size) in PRODUCTS.items():
            weights = [_normal(out_size, in_size) for _ in range(LAYERS)]
            x = _normal(rows, in_size)

            def run(i: int) -> None:
                F.linear(x, weights[i % LAYERS])  # noqa: B023

            us = median_us(run)
            if rows < 64:
                yield moved(f"{name}, cuBLAS", f"{rows} row", out_size * in_size * 2, us)
            else:
                yield computed(f"{name}, cuBLAS", f"{rows} rows", 2 * rows * out_size * in_size, us)
            product = wide.find(rows, weights[0], x.dtype)
            if product is not None:
                out = torch.empty((rows, out_size), device=DEVICE, dtype=torch.bfloat16)

                def chosen(i: int) -> None:
                    product(x, weights[i % LAYERS], out)  # type: ignore[misc]  # noqa: B023

                yield computed(f"{name}, cuBLASLt", f"{rows} rows", 2 * rows * out_size * in_size, median_us(chosen))
            if rows == 1:
                out = torch.empty((1, out_size), device=DEVICE, dtype=torch.bfloat16)

                def single(i: int) -> None:
                    gemv(x, weights[i % LAYERS], out, GemvTile(4, 1024, 4), dependent=True)  # noqa: B023

                yield moved(f"{name}, gemv", "1 row", out_size * in_size * 2, median_us(single))


def elementwise() -> Iterator[Timing]:
    for rows in (1, 512, 8192):
        x, residual, weight, wide = (
            _normal(*s) for s in ((rows, HIDDEN), (rows, HIDDEN), (HIDDEN,), (rows, 2 * INNER))
        )
        norm = median_us(lambda i, x=x, r=residual, w=weight: add_rms_norm(x, r, w, 1e-5))  # type: ignore[misc]
        yield moved("add + norm", f"{rows} rows", 4 * rows * HIDDEN * 2, norm)
        yield moved("silu * up", f"{rows} rows", 3 * rows * INNER * 2, median_us(lambda i, w=wide: silu_and_mul(w)))  # type: ignore[misc]


PARTS = {"decodes": decodes, "chunks": chunks, "prefixes": prefixes, "products": products, "elementwise": elementwise}


def _kernel(backend: str, num_heads: int) -> PagedAttention:
    return PagedAttention(
        "fa3" if backend == "fa3" else "fa2",
        num_heads=num_heads,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        page_size=PAGE,
        dtype=torch.bfloat16,
    )


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Time the kernels. Returns the exit code."""
    parser = Arguments(prog=prog, description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable; without it all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    timings = []
    for part in options.part or PARTS:
        for timing in PARTS[part]():
            timings.append(timing)
            if not options.json:
                print(
                    f"{timing.kernel:26} {timing.size:26} {timing.us:9.1f} us {timing.rate:9.2f} {timing.unit}",
                    flush=True,
                )
        torch.cuda.empty_cache()
    if options.json:
        print(json.dumps([asdict(timing) for timing in timings]))
    return 0


if __name__ == "__main__":
    run(main)
