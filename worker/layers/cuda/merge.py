"""Joins attention over a shared prefix with attention over each sequence's own part."""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel


@kernel
def _merge_prefix(
    own_ptr: tl.tensor,
    own_lse_ptr: tl.tensor,
    prefix_ptr: tl.tensor,
    prefix_lse_ptr: tl.tensor,
    grouped_ptr: tl.tensor,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    if row >= tl.load(grouped_ptr):
        return
    heads = tl.arange(0, BLOCK_HEADS)
    known = heads < Q_HEADS
    group: tl.constexpr = Q_HEADS // KV_HEADS
    packed = (heads % group) * KV_HEADS + heads // group
    own_lse = tl.load(own_lse_ptr + row * Q_HEADS + heads, mask=known, other=0.0)
    prefix_lse = tl.load(prefix_lse_ptr + row * Q_HEADS + packed, mask=known, other=0.0)
    top = tl.maximum(own_lse, prefix_lse)
    own_weight = tl.exp2(own_lse - top)
    prefix_weight = tl.exp2(prefix_lse - top)
    total = own_weight + prefix_weight
    columns = tl.arange(0, HEAD_DIM)[None, :]
    at = row * (Q_HEADS * HEAD_DIM) + heads[:, None] * HEAD_DIM + columns
    at_packed = row * (Q_HEADS * HEAD_DIM) + packed[:, None] * HEAD_DIM + columns
    own = tl.load(own_ptr + at, mask=known[:, None], other=0.0).to(tl.float32)
    prefix = tl.load(prefix_ptr + at_packed, mask=known[:, None], other=0.0).to(tl.float32)
    out = own * (own_weight / total)[:, None] + prefix * (prefix_weight / total)[:, None]
    tl.store(own_ptr + at, out.to(own_ptr.dtype.element_ty), mask=known[:, None])


def merge_prefix(
    own: torch.Tensor,
    own_lse: torch.Tensor,
    prefix: torch.Tensor,
    prefix_lse: torch.Tensor,
    num_grouped: torch.Tensor,
    kv_heads: int,
) -> None:
    """Fold attention over the prefix into `own` [R, q_heads, head_dim], in place, for the first `num_grouped` rows.

    The logarithms of the softmax sums are base 2 and fp32: `own_lse` [R, q_heads]. `prefix` and `prefix_lse` have the
    head order of `rotate_and_store`'s `packed_out`: memory [R, group, kv_heads(, head_dim)]. `num_grouped` is int32 [1]
    on the device, so that a captured graph serves every grouping.
    """
    rows, q_heads, head_dim = own.shape
    _merge_prefix[(rows,)](
        own,
        own_lse,
        prefix,
        prefix_lse,
        num_grouped,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HEADS=1 << (q_heads - 1).bit_length(),
        num_warps=8,
    )
