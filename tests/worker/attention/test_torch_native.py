"""Attention over the paged pool against a direct computation per sequence."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.attention.base import Int32s, PassMetadata
from worker.attention.kv_pool import KVPool
from worker.attention.torch_native import TorchNativeAttention, _group_bounds

HEADS, KV_HEADS, DIM, LAYERS = 6, 2, 8, 2


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last len(q) of len(k) positions, causal, in fp64. q [Q, heads, D] -> [Q, heads * D]."""
    k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,shd->hqs", q.double(), k) / DIM**0.5
    seen = torch.arange(len(k))[None, :] <= torch.arange(len(k) - len(q), len(k))[:, None]
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqs,shd->qhd", weights, v).flatten(1).float()


lengths = st.lists(st.integers(1, 60), max_size=7)
chunks = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=3)


@given(lengths, chunks, st.sampled_from([1, 3, 16]), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_decodes_and_chunks_of_one_pass(
    decodes: list[int], prefills: list[tuple[int, int]], page_size: int, seed: int
) -> None:
    if not decodes and not prefills:
        return
    rng = np.random.default_rng(seed)
    query_lens = np.array([1] * len(decodes) + [new for _, new in prefills], np.int32)
    seq_lens = np.array(decodes + [cached + new for cached, new in prefills], np.int32)
    num = len(seq_lens)
    pages_per_row = -(-int(seq_lens.max()) // page_size)
    num_pages = num * pages_per_row
    table = (rng.permutation(num_pages) + 1).reshape(num, pages_per_row).astype(np.int32)
    rows = rng.permutation(num).astype(np.int32)

    def slots(i: int) -> np.ndarray:
        positions = np.arange(seq_lens[i])
        return table[rows[i], positions // page_size].astype(np.int64) * page_size + positions % page_size

    write = np.concatenate([slots(i)[-query_lens[i] :] for i in range(num)])
    pool = KVPool(
        num_layers=LAYERS,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    torch.manual_seed(seed % 2**31)
    pool.k[:, 1:].normal_()
    pool.v[:, 1:].normal_()
    attention = TorchNativeAttention(pool, num_heads=HEADS)
    attention.plan(PassMetadata(rows, query_lens, seq_lens, len(decodes), write, table, page_size))
    for layer in range(LAYERS):
        q = torch.randn(len(write), HEADS, DIM)
        k, v = torch.randn(2, len(write), KV_HEADS, DIM)
        out = attention.forward(layer, q, k, v)
        keys, values = pool.slots(layer)
        assert torch.equal(keys[write], k) and torch.equal(values[write], v)
        end = 0
        for i in range(num):
            start, end = end, end + int(query_lens[i])
            expected = reference(q[start:end], keys[slots(i)], values[slots(i)])
            torch.testing.assert_close(out[start:end], expected, rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(1, 9000), max_size=80))
def test_groups_cover_all_in_order_and_bound_padding(lens: list[int]) -> None:
    ordered: Int32s = np.array(sorted(lens, reverse=True), np.int32)
    bounds = _group_bounds(ordered)
    assert bounds == sorted(set(bounds))
    assert (bounds[0], bounds[-1]) == (0, len(lens)) if lens else bounds == []
    for start, end in zip(bounds, bounds[1:], strict=False):
        tokens = int(ordered[start]) * (end - start)
        assert end - start == 1 or tokens <= 4096
        assert int(ordered[start]) - int(ordered[end - 1]) <= 350
