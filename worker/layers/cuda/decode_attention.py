"""Attention for very few decodes, all in one kernel: rotation, the write of the new key and value, attention over the
pages by many programs a sequence, and their reduction by the last of them to finish."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from worker.layers.cuda.jit import kernel

_SPLITS = 16  # programs for each KV head of a sequence
_TOKENS = 32  # a program reads at a time; larger ones keep the next kernel from starting beside it
_MIN_DOT_ROWS = 16


@kernel
def _attend(
    qkv_ptr: tl.tensor,
    cos_sin_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    indptr_ptr: tl.tensor,
    indices_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    counters_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = Q_HEADS // KV_HEADS
    width: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * 2 * HALF
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, HALF)
    real = (rows < group)[:, None]
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    position = tl.load(positions_ptr + sequence)
    cos = tl.load(cos_sin_ptr + position.to(tl.int64) * (2 * HALF) + columns)
    sin = tl.load(cos_sin_ptr + position.to(tl.int64) * (2 * HALF) + HALF + columns)
    source = qkv_ptr + sequence * width
    of_query = source + (head * group + rows)[:, None] * (2 * HALF) + columns[None, :]
    low = tl.load(of_query, mask=real, other=0.0).to(tl.float32)
    high = tl.load(of_query + HALF, mask=real, other=0.0).to(tl.float32)
    q_low = (low * cos[None, :] - high * sin[None, :]).to(qkv_ptr.dtype.element_ty)
    q_high = (high * cos[None, :] + low * sin[None, :]).to(qkv_ptr.dtype.element_ty)
    of_key = source + (Q_HEADS + head) * (2 * HALF) + columns
    low_key = tl.load(of_key).to(tl.float32)
    high_key = tl.load(of_key + HALF).to(tl.float32)
    new_low = (low_key * cos - high_key * sin).to(qkv_ptr.dtype.element_ty)
    new_high = (high_key * cos + low_key * sin).to(qkv_ptr.dtype.element_ty)
    dims = tl.arange(0, 2 * HALF)
    new_value = tl.load(source + (Q_HEADS + KV_HEADS + head) * (2 * HALF) + dims)

    blocks = (position + TOKENS) // TOKENS
    per_split = (blocks + SPLITS - 1) // SPLITS
    active = (blocks + per_split - 1) // per_split
    if split == active - 1:
        slot = tl.load(slots_ptr + sequence).to(tl.int64) * (KV_HEADS * 2 * HALF) + head * (2 * HALF)
        tl.store(k_cache_ptr + slot + columns, new_low)
        tl.store(k_cache_ptr + slot + HALF + columns, new_high)
        tl.store(v_cache_ptr + slot + dims, new_value)
    if split >= active:
        return
    pages = indices_ptr + tl.load(indptr_ptr + sequence)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, 2 * HALF), tl.float32)
    for block in range(split * per_split, tl.minimum((split + 1) * per_split, blocks)):
        tokens = block * TOKENS + tl.arange(0, TOKENS)
        cached = tokens < position
        newest = (tokens == position)[:, None]
        page = tl.load(pages + tokens // PAGE_SIZE, mask=cached, other=0).to(tl.int64)
        at = (page * PAGE_SIZE + tokens % PAGE_SIZE) * (KV_HEADS * 2 * HALF) + head * (2 * HALF)
        keys = k_cache_ptr + at[:, None] + columns[None, :]
        k_low = tl.load(keys, mask=cached[:, None], other=0.0)
        k_high = tl.load(keys + HALF, mask=cached[:, None], other=0.0)
        values = tl.load(v_cache_ptr + at[:, None] + dims[None, :], mask=cached[:, None], other=0.0)
        k_low = tl.where(newest, new_low[None, :], k_low)
        k_high = tl.where(newest, new_high[None, :], k_high)
        values = tl.where(newest, new_value[None, :], values)
        scores = (tl.dot(q_low, tl.trans(k_low)) + tl.dot(q_high, tl.trans(k_high))) * scale
        scores = tl.where((tokens <= position)[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        best = higher

    to_out = out_ptr + sequence * (Q_HEADS * 2 * HALF) + (head * group + rows)[:, None] * (2 * HALF) + dims[None, :]
    if active == 1:
        tl.store(to_out, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=real)
        return
    place = (sequence * KV_HEADS + head) * SPLITS
    part = (place + split) * ROWS + rows
    tl.store(partial_ptr + part[:, None] * (2 * HALF) + dims[None, :], sums)
    tl.store(sums_ptr + part * 2, best)
    tl.store(sums_ptr + part * 2 + 1, total)
    tl.debug_barrier()
    counter = counters_ptr + sequence * KV_HEADS + head
    if tl.atomic_add(counter, 1, sem="acq_rel") != active - 1:
        return
    tl.store(counter, 0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, 2 * HALF), tl.float32)
    for other in range(active):
        part = (place + other) * ROWS + rows
        top = tl.load(sums_ptr + part * 2, cache_modifier=".cg")
        higher = tl.maximum(best, top)
        shrink, weight = tl.exp2(best - higher), tl.exp2(top - higher)
        total = total * shrink + tl.load(sums_ptr + part * 2 + 1, cache_modifier=".cg") * weight
        theirs = tl.load(partial_ptr + part[:, None] * (2 * HALF) + dims[None, :], cache_modifier=".cg")
        sums = sums * shrink[:, None] + theirs * weight[:, None]
        best = higher
    tl.store(to_out, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=real)


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Partial results of up to `max_batch` decodes; passes use it in stream order."""

    partial: torch.Tensor
    sums: torch.Tensor
    counters: torch.Tensor

    @staticmethod
    def make(max_batch: int, q_heads: int, kv_heads: int, head_dim: int, device: torch.device) -> DecodeScratch:
        parts = max_batch * kv_heads * _SPLITS * _rows(q_heads, kv_heads)
        return DecodeScratch(
            partial=torch.empty((parts, head_dim), dtype=torch.float32, device=device),
            sums=torch.empty((parts, 2), dtype=torch.float32, device=device),
            counters=torch.zeros(max_batch * kv_heads, dtype=torch.int32, device=device),
        )


def decode_attention(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    scratch: DecodeScratch,
    *,
    dependent: bool,
) -> None:
    """qkv [B, (q_heads + 2 * kv_heads) * head_dim], not rotated, contiguous -> out [B, q_heads * head_dim].

    Sequence i attends to the tokens 0 .. positions[i] in pages indices[indptr[i] :] of the caches
    [pages, page_size, kv_heads, head_dim]; the newest key and value are written to slots[i] on the way.
    """
    batch = qkv.shape[0]
    _, page_size, kv_heads, head_dim = k_cache.shape
    q_heads = out.shape[1] // head_dim
    _attend[(batch, kv_heads, _SPLITS)](
        qkv,
        cos_sin,
        positions,
        slots,
        indptr,
        indices,
        k_cache,
        v_cache,
        scratch.partial,
        scratch.sums,
        scratch.counters,
        out,
        math.log2(math.e) / math.sqrt(head_dim),
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        PAGE_SIZE=page_size,
        SPLITS=_SPLITS,
        TOKENS=_TOKENS,
        ROWS=_rows(q_heads, kv_heads),
        DEPENDENT=dependent,
        num_warps=4,
        launch_pdl=dependent,
    )


def _rows(q_heads: int, kv_heads: int) -> int:
    """Query heads of a KV head, padded to what matrix units take."""
    return max(_MIN_DOT_ROWS, 1 << (q_heads // kv_heads - 1).bit_length())
