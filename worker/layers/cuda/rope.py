"""Rotary embedding of queries and keys, per-head norm of both where a model has it, and the write of keys and values
into the paged cache: one kernel between the QKV product and attention."""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel

_HEADS_PER_PROGRAM = 8


@kernel
def _rotate_and_store(
    q_in_ptr: tl.tensor,
    k_in_ptr: tl.tensor,
    v_in_ptr: tl.tensor,
    cos_sin_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    q_ptr: tl.tensor,
    packed_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    eps: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    PACK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, HALF)
    total: tl.constexpr = Q_HEADS + 2 * KV_HEADS
    known = (heads < total)[:, None]
    is_query = (heads < Q_HEADS)[:, None]
    is_value = (heads >= Q_HEADS + KV_HEADS)[:, None]
    of_query = q_in_ptr + token * q_stride + heads[:, None] * (2 * HALF)
    of_key = k_in_ptr + token * k_stride + (heads - Q_HEADS)[:, None] * (2 * HALF)
    of_value = v_in_ptr + token * v_stride + (heads - Q_HEADS - KV_HEADS)[:, None] * (2 * HALF)
    source = tl.where(is_query, of_query, tl.where(is_value, of_value, of_key)) + columns[None, :]
    low = tl.load(source, mask=known, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=known, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
        scale = tl.where(is_value, 1.0, scale)
        q_low, q_high = tl.load(q_norm_ptr + columns), tl.load(q_norm_ptr + HALF + columns)
        k_low, k_high = tl.load(k_norm_ptr + columns), tl.load(k_norm_ptr + HALF + columns)
        weight_low = tl.where(is_query, q_low.to(tl.float32)[None, :], k_low.to(tl.float32)[None, :])
        weight_high = tl.where(is_query, q_high.to(tl.float32)[None, :], k_high.to(tl.float32)[None, :])
        low = low * scale * tl.where(is_value, 1.0, weight_low)
        high = high * scale * tl.where(is_value, 1.0, weight_high)
    new_low, new_high = low, high
    if ROTATE:
        position = tl.load(positions_ptr + token).to(tl.int64)
        cos = tl.load(cos_sin_ptr + position * (2 * HALF) + columns)[None, :]
        sin = tl.load(cos_sin_ptr + position * (2 * HALF) + HALF + columns)[None, :]
        new_low = tl.where(is_value, low, low * cos - high * sin)
        new_high = tl.where(is_value, high, high * cos + low * sin)
    new_low, new_high = new_low.to(q_ptr.dtype.element_ty), new_high.to(q_ptr.dtype.element_ty)
    to_query = token * (Q_HEADS * 2 * HALF) + heads[:, None] * (2 * HALF) + columns[None, :]
    tl.store(q_ptr + to_query, new_low, mask=is_query)
    tl.store(q_ptr + to_query + HALF, new_high, mask=is_query)
    if PACK:
        group: tl.constexpr = Q_HEADS // KV_HEADS
        packed = (heads % group) * KV_HEADS + heads // group
        to_packed = token * (Q_HEADS * 2 * HALF) + packed[:, None] * (2 * HALF) + columns[None, :]
        tl.store(packed_ptr + to_packed, new_low, mask=is_query)
        tl.store(packed_ptr + to_packed + HALF, new_high, mask=is_query)
    slot = tl.load(slots_ptr + token).to(tl.int64) * (KV_HEADS * 2 * HALF)
    to_key = slot + (heads - Q_HEADS)[:, None] * (2 * HALF) + columns[None, :]
    is_key = known & (is_query == 0) & (is_value == 0)
    tl.store(k_cache_ptr + to_key, new_low, mask=is_key)
    tl.store(k_cache_ptr + to_key + HALF, new_high, mask=is_key)
    to_value = slot + (heads - Q_HEADS - KV_HEADS)[:, None] * (2 * HALF) + columns[None, :]
    tl.store(v_cache_ptr + to_value, new_low, mask=known & is_value)
    tl.store(v_cache_ptr + to_value + HALF, new_high, mask=known & is_value)


def rotate_and_store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor | None,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_out: torch.Tensor,
    *,
    packed_out: torch.Tensor | None = None,
    qk_norm: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> None:
    """q [T, q_heads, head_dim] rotated into q_out; k, v [T, kv_heads, head_dim] (k rotated) into the caches
    [pages, page_size, kv_heads, head_dim] at `slots` [T] (page * page_size + offset). Heads are contiguous.

    `cos_sin` is the fp32 table [context, head_dim], cosines first; without it nothing is rotated. `positions` and
    `slots` are integers [T]. `packed_out` [T, q_heads, head_dim] gets the queries once more, with head
    h = kv * group + g at place g * kv_heads + kv: read as [T * group, kv_heads, head_dim] it makes the queries of one
    KV head neighbours. `qk_norm` = (q weight, k weight, eps) of a per-head RMS norm before the rotation.
    """
    tokens, q_heads, head_dim = q_out.shape
    kv_heads = k.shape[1]
    if not tokens:
        return
    q_norm, k_norm, eps = qk_norm or (q, q, 0.0)
    grid = (tokens, -(-(q_heads + 2 * kv_heads) // _HEADS_PER_PROGRAM))
    _rotate_and_store[grid](
        q,
        k,
        v,
        cos_sin if cos_sin is not None else q,
        positions,
        slots,
        q_norm,
        k_norm,
        q_out,
        packed_out if packed_out is not None else q_out,
        k_cache,
        v_cache,
        eps,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        HEADS=_HEADS_PER_PROGRAM,
        NORM=qk_norm is not None,
        ROTATE=cos_sin is not None,
        PACK=packed_out is not None,
        num_warps=4,
    )
