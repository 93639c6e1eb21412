"""Products of a few rows with a weight, as in decodes of small batches: bound by reading the weight once.

What stands before and after the product in a decoder layer is fused in, which saves launches: an RMS norm of the input
(its scale factors out of the product), the gated activation, and the addition to the residual. `dependent` launches
let a kernel start before the one ahead of it has ended: it fetches its first weights, then waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from worker.layers.cuda.jit import kernel


@dataclass(frozen=True, slots=True)
class GemvTile:
    """How a program cuts the weight: `rows` of it, `columns` at a time, by `warps`."""

    rows: int
    columns: int
    warps: int


@kernel
def _gemv(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    OUT: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """One output row block for each of BATCH inputs; the weight block is read once and kept for all of them."""
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    batch = tl.arange(0, BATCH)
    at = weight_ptr + outs.to(tl.int64)[:, None] * SIZE + columns[None, :]
    known = (outs < OUT)[:, None]
    weight = tl.load(at, mask=known & (columns < SIZE)[None, :], other=0.0, eviction_policy="evict_first")
    up = weight
    if GATED:
        up = tl.load(at + OUT * SIZE, mask=known & (columns < SIZE)[None, :], other=0.0, eviction_policy="evict_first")
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    sums = tl.zeros((BATCH, BLOCK_N), tl.float32)
    up_sums = tl.zeros((BATCH, BLOCK_N), tl.float32)
    squares = tl.zeros((BATCH,), tl.float32)
    for start in range(0, SIZE, BLOCK_K):
        inside = start + columns < SIZE
        x = tl.load(x_ptr + batch[:, None] * SIZE + (start + columns)[None, :], mask=inside[None, :], other=0.0).to(
            tl.float32
        )
        here, here_up = weight.to(tl.float32), up.to(tl.float32)
        follows = known & (start + BLOCK_K + columns < SIZE)[None, :]
        weight = tl.load(at + start + BLOCK_K, mask=follows, other=0.0, eviction_policy="evict_first")
        if GATED:
            up = tl.load(at + OUT * SIZE + start + BLOCK_K, mask=follows, other=0.0, eviction_policy="evict_first")
        if NORM:
            squares += tl.sum(x * x, 1)
            x *= tl.load(norm_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        sums += tl.sum(here[None, :, :] * x[:, None, :], 2)
        if GATED:
            up_sums += tl.sum(here_up[None, :, :] * x[:, None, :], 2)
    if NORM:
        scale = tl.rsqrt(squares / SIZE + eps)[:, None]
        sums *= scale
        up_sums *= scale
    if GATED:
        sums = sums / (1.0 + tl.exp(-sums)) * up_sums
    to = out_ptr + batch[:, None] * OUT + outs[None, :]
    if ADD:
        sums += tl.load(to, mask=(outs < OUT)[None, :], other=0.0).to(tl.float32)
    tl.store(to, sums.to(out_ptr.dtype.element_ty), mask=(outs < OUT)[None, :])


@kernel
def _gemv_single(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    OUT: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """As `_gemv` for one input: products stay apart by column until the end, so that only one sum crosses threads."""
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    at = weight_ptr + outs.to(tl.int64)[:, None] * SIZE + columns[None, :]
    known = (outs < OUT)[:, None]
    weight = tl.load(at, mask=known & (columns < SIZE)[None, :], other=0.0, eviction_policy="evict_first")
    up = weight
    if GATED:
        up = tl.load(at + OUT * SIZE, mask=known & (columns < SIZE)[None, :], other=0.0, eviction_policy="evict_first")
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    products = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up_products = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, SIZE, BLOCK_K):
        inside = start + columns < SIZE
        x = tl.load(x_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        here, here_up = weight.to(tl.float32), up.to(tl.float32)
        follows = known & (start + BLOCK_K + columns < SIZE)[None, :]
        weight = tl.load(at + start + BLOCK_K, mask=follows, other=0.0, eviction_policy="evict_first")
        if GATED:
            up = tl.load(at + OUT * SIZE + start + BLOCK_K, mask=follows, other=0.0, eviction_policy="evict_first")
        if NORM:
            squares += x * x
            x *= tl.load(norm_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        products += here * x[None, :]
        if GATED:
            up_products += here_up * x[None, :]
    sums = tl.sum(products, 1)
    up_sums = tl.sum(up_products, 1)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 0) / SIZE + eps)
        sums *= scale
        up_sums *= scale
    if GATED:
        sums = sums / (1.0 + tl.exp(-sums)) * up_sums
    if ADD:
        sums += tl.load(out_ptr + outs, mask=outs < OUT, other=0.0).to(tl.float32)
    tl.store(out_ptr + outs, sums.to(out_ptr.dtype.element_ty), mask=outs < OUT)


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tile: GemvTile,
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    gated: bool = False,
    add: bool = False,
    dependent: bool = False,
) -> None:
    """out = x @ weight.T for x [B, in] and weight [out, in], all contiguous, B a power of two.

    `norm` (weight, eps): x is RMS-normed first. `gated`: weight is [2 * out, in], gate above up, and
    out = silu(x @ gate.T) * (x @ up.T). `add`: out += instead of out =.
    """
    batch, size = x.shape
    columns = out.shape[1]
    norm_weight, eps = norm or (x, 0.0)
    program = _gemv_single if batch == 1 else _gemv
    program[(-(-columns // tile.rows),)](
        x,
        weight,
        norm_weight,
        out,
        eps,
        SIZE=size,
        OUT=columns,
        BATCH=batch,
        BLOCK_N=tile.rows,
        BLOCK_K=tile.columns,
        NORM=norm is not None,
        GATED=gated,
        ADD=add,
        DEPENDENT=dependent,
        num_warps=tile.warps,
        launch_pdl=dependent,
    )
