"""Attention in plain torch over the paged pool: what the CPU runs, and the oracle for other backends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from worker.attention.base import Int32s, Int64s, PassMetadata
from worker.attention.kv_pool import KVPool

# A call of its own for shorter sequences costs about as much as reading this many padded tokens.
_SPLIT_COST_TOKENS = 350
_MAX_GROUP_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes of similar length, padded to the longest."""

    tokens: torch.Tensor | slice  # which of the pass's tokens
    size: int
    slots: torch.Tensor  # int64 [size * longest]; 0 where padded
    mask: torch.Tensor | None  # additive [size, 1, 1, longest]; None when nothing is padded


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A prefill chunk."""

    tokens: slice
    slots: torch.Tensor | None  # int64 [seq_len]; None when the whole sequence is computed in this pass
    mask: torch.Tensor | None  # bool [query_len, seq_len], True = attend; None when slots is


class TorchNativeAttention:
    """SDPA: decodes padded together by groups of similar length, prefill chunks one by one."""

    def __init__(self, pool: KVPool, *, num_heads: int) -> None:
        self._layers = [pool.slots(layer) for layer in range(len(pool.k))]
        self._num_heads = num_heads
        self._num_kv_heads, self._head_dim = pool.k.shape[-2:]
        self._dtype = pool.k.dtype
        self._write_slots = torch.empty(0, dtype=torch.int64)
        self._decodes: list[_DecodeGroup] = []
        self._prefills: list[_Prefill] = []

    def plan(self, metadata: PassMetadata) -> None:
        self._write_slots = torch.from_numpy(metadata.write_slots)
        self._decodes = _plan_decodes(metadata, self._dtype)
        self._prefills = _plan_prefills(metadata)

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self._layers[layer]
        keys.index_copy_(0, self._write_slots, k)
        values.index_copy_(0, self._write_slots, v)
        out = torch.empty((len(q), self._num_heads, self._head_dim), dtype=q.dtype)
        for group in self._decodes:
            out[group.tokens] = self._decode(q[group.tokens], keys, values, group)
        for chunk in self._prefills:
            part = chunk.tokens
            if chunk.slots is None:
                out[part] = _attend(q[part], k[part], v[part], None)
            else:
                cached = chunk.slots
                out[part] = _attend(q[part], keys.index_select(0, cached), values.index_select(0, cached), chunk.mask)
        return out.flatten(1)

    def _decode(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: _DecodeGroup) -> torch.Tensor:
        """The query heads that share a KV head stand in the place of query positions, so KV is not repeated."""
        shape = (group.size, -1, self._num_kv_heads, self._head_dim)
        k = keys.index_select(0, group.slots).view(shape).transpose(1, 2)
        v = values.index_select(0, group.slots).view(shape).transpose(1, 2)
        grouped = q.reshape(group.size, self._num_kv_heads, -1, self._head_dim)
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask).reshape(q.shape)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One sequence: q [Q, heads, D], k and v [S, kv_heads, D] -> [Q, heads, D]. Without a mask Q = S, causal."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def _plan_decodes(metadata: PassMetadata, dtype: torch.dtype) -> list[_DecodeGroup]:
    lens = metadata.seq_lens[: metadata.num_decode]
    order = np.argsort(-lens, kind="stable")
    bounds = _group_bounds(lens[order])
    groups = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        members = order[start:end]
        slots = _context_slots(metadata, members, int(lens[members[0]]))
        padding = np.arange(slots.shape[1]) >= lens[members, None]
        mask = None
        if padding.any():
            slots[padding] = 0
            mask = torch.zeros(padding.shape, dtype=dtype).masked_fill_(torch.from_numpy(padding), -torch.inf)
            mask = mask[:, None, None, :]
        everyone = len(bounds) == 2 and bool((members[1:] > members[:-1]).all())
        tokens = slice(0, len(members)) if everyone else torch.from_numpy(members)
        groups.append(_DecodeGroup(tokens, len(members), torch.from_numpy(slots.ravel()), mask))
    return groups


def _group_bounds(lens: Int32s) -> list[int]:
    """Cut lengths in descending order into runs: a cut pays if it saves more padding than a call costs, and is made
    before the gathered keys and values outgrow the CPU's caches."""
    bounds = [0]
    for i in range(1, len(lens)):
        longest = int(lens[bounds[-1]])
        padding = (longest - int(lens[i])) * (len(lens) - i)
        if padding > _SPLIT_COST_TOKENS or longest * (i + 1 - bounds[-1]) > _MAX_GROUP_TOKENS:
            bounds.append(i)
    return [*bounds, len(lens)] if len(lens) else []


def _plan_prefills(metadata: PassMetadata) -> list[_Prefill]:
    chunks = []
    start = metadata.num_decode
    for i in range(metadata.num_decode, len(metadata.rows)):
        query_len, seq_len = int(metadata.query_lens[i]), int(metadata.seq_lens[i])
        tokens = slice(start, start + query_len)
        start += query_len
        if query_len == seq_len:
            chunks.append(_Prefill(tokens, None, None))
            continue
        slots = torch.from_numpy(_context_slots(metadata, np.array([i]), seq_len).ravel())
        mask = torch.ones((query_len, seq_len), dtype=torch.bool).tril_(seq_len - query_len)
        chunks.append(_Prefill(tokens, slots, mask))
    return chunks


def _context_slots(metadata: PassMetadata, sequences: Int64s, length: int) -> Int64s:
    """int64 [sequences, length]: the slots of each sequence's positions 0 .. length - 1."""
    size = metadata.page_size
    pages = metadata.page_table[metadata.rows[sequences], : -(-length // size)].astype(np.int64)
    if size == 1:
        return pages
    slots = pages[:, :, None] * size + np.arange(size)
    return slots.reshape(len(sequences), -1)[:, :length]
