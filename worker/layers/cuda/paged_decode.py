"""Attention of many decodes: one program for each sequence and KV head, so small that several share a multiprocessor
and hide each other's waits. Few decodes would leave the GPU empty: their sequences must be split, as flashinfer does.
"""

from __future__ import annotations

import math

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel

_MIN_DOT_ROWS = 16
# Measured on an H200 (docs/performance.md): small programs once there are enough of them to fill it.
_MANY_PROGRAMS = 1024
_SMALL, _LARGE = (32, 2), (64, 4)  # tokens read at a time, warps
_STAGES = 2


@kernel
def _paged_decode(
    q_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    indptr_ptr: tl.tensor,
    indices_ptr: tl.tensor,
    last_page_lens_ptr: tl.tensor,
    out_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    scale: tl.tensor,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    head, sequence = tl.program_id(0), tl.program_id(1)
    group: tl.constexpr = Q_HEADS // KV_HEADS
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    real = (rows < group)[:, None]
    start = tl.load(indptr_ptr + sequence)
    length = (tl.load(indptr_ptr + sequence + 1) - start - 1) * PAGE_SIZE + tl.load(last_page_lens_ptr + sequence)
    here = sequence * (Q_HEADS * HEAD_DIM) + (head * group + rows)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + here, mask=real, other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    for block in tl.range(0, length, TOKENS, num_stages=STAGES):
        tokens = block + tl.arange(0, TOKENS)
        known = tokens < length
        page = tl.load(indices_ptr + start + tokens // PAGE_SIZE, mask=known, other=0).to(tl.int64)
        at = (page * PAGE_SIZE + tokens % PAGE_SIZE) * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM
        keys = tl.load(k_cache_ptr + at[:, None] + dims[None, :], mask=known[:, None], other=0.0)
        values = tl.load(v_cache_ptr + at[:, None] + dims[None, :], mask=known[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(keys)) * scale
        scores = tl.where(known[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        best = higher
    tl.store(out_ptr + here, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=real)
    tl.store(lse_ptr + sequence * Q_HEADS + head * group + rows, best + tl.log2(total), mask=rows < group)


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """q [R, q_heads, head_dim] -> out, as q, and `lse` fp32 [R, q_heads], the base-2 logarithm of each softmax sum.

    Sequence i attends to all tokens in pages indices[indptr[i] : indptr[i + 1]] of the caches
    [pages, page_size, kv_heads, head_dim], of which the last holds last_page_lens[i].
    """
    _, page_size, kv_heads, head_dim = k_cache.shape
    tokens, warps = _SMALL if len(q) * kv_heads >= _MANY_PROGRAMS else _LARGE
    _paged_decode[(kv_heads, q.shape[0])](
        q,
        k_cache,
        v_cache,
        indptr,
        indices,
        last_page_lens,
        out,
        lse,
        math.log2(math.e) / math.sqrt(head_dim),
        Q_HEADS=q.shape[1],
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        TOKENS=tokens,
        ROWS=max(_MIN_DOT_ROWS, 1 << (q.shape[1] // kv_heads - 1).bit_length()),
        STAGES=_STAGES,
        num_warps=warps,
    )
