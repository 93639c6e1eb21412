"""Each Triton kernel against plain torch in fp32, on fresh random inputs with poisoned outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from worker.layers.cuda.activation import silu_and_mul
from worker.layers.cuda.argmax import argmax_into
from worker.layers.cuda.decode_attention import DecodeScratch, decode_attention
from worker.layers.cuda.gemv import GemvTile, gemv
from worker.layers.cuda.merge import merge_prefix
from worker.layers.cuda.norm import add_rms_norm, rms_norm
from worker.layers.cuda.paged_decode import paged_decode
from worker.layers.cuda.rope import rotate_and_store
from worker.layers.cuda.sample import sample_into
from worker.layers.cuda.tables import decode_inputs, write_pages

_BF16 = torch.bfloat16


def _random(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device).to(_BF16)


def _error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return float((out.float() - reference.float()).norm() / reference.float().norm())


@pytest.mark.parametrize(("tokens", "size"), [(1, 576), (7, 4096)])
def test_norms(device: torch.device, tokens: int, size: int) -> None:
    x, residual, weight = _random(device, tokens, size), _random(device, tokens, size), _random(device, size)
    assert _error(rms_norm(x, weight, 1e-5), F.rms_norm(x.float(), (size,), weight.float(), 1e-5)) < 5e-3
    total = x.float() + residual.float()
    out = add_rms_norm(x, residual, weight, 1e-5)
    assert _error(residual, total) < 5e-3
    assert _error(out, F.rms_norm(total, (size,), weight.float(), 1e-5)) < 5e-3


def test_silu_and_mul(device: torch.device) -> None:
    x = _random(device, 5, 2 * 1536)
    gate, up = x.float().chunk(2, dim=-1)
    assert _error(silu_and_mul(x), F.silu(gate) * up) < 5e-3


@pytest.mark.parametrize("norm", [False, True])
def test_rotation_goes_to_queries_and_cache(device: torch.device, norm: bool) -> None:
    tokens, q_heads, kv_heads, head_dim, page = 5, 6, 2, 64, 4
    qkv = _random(device, tokens, (q_heads + 2 * kv_heads) * head_dim).view(tokens, -1, head_dim)
    q, k, v = qkv.split((q_heads, kv_heads, kv_heads), dim=1)
    angles = torch.rand(32, head_dim // 2, device=device) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randperm(32, device=device)[:tokens].int()
    slots = torch.randperm(8 * page, device=device)[:tokens].int()
    caches = [torch.full((8, page, kv_heads, head_dim), torch.nan, dtype=_BF16, device=device) for _ in range(2)]
    q_out = torch.full((tokens, q_heads, head_dim), torch.nan, dtype=_BF16, device=device)
    packed = torch.full_like(q_out, torch.nan)
    weights = (_random(device, head_dim), _random(device, head_dim), 1e-6) if norm else None
    rotate_and_store(q, k, v, table, positions, slots, *caches, q_out, packed_out=packed, qk_norm=weights)

    def rotated(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        x = x.float() if weight is None else F.rms_norm(x.float(), (head_dim,), weight.float(), 1e-6)
        cos, sin = table[positions.long()].unsqueeze(1).chunk(2, dim=-1)
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    q_weight, k_weight = (weights[0], weights[1]) if weights else (None, None)
    assert _error(q_out, rotated(q, q_weight)) < 5e-3
    assert torch.equal(packed.view(tokens, 3, 2, -1), q_out.view(tokens, 2, 3, -1).transpose(1, 2))
    keys, values = (cache.flatten(0, 1) for cache in caches)
    assert _error(keys[slots.long()], rotated(k, k_weight)) < 5e-3
    assert torch.equal(values[slots.long()], v)
    assert int(keys.isnan().all(-1).all(-1).sum()) == 8 * page - tokens


def test_without_a_table_nothing_is_rotated(device: torch.device) -> None:
    tokens, q_heads, kv_heads, head_dim, page = 3, 4, 2, 64, 4
    q, k, v = (_random(device, tokens, heads, head_dim) for heads in (q_heads, kv_heads, kv_heads))
    slots = torch.randperm(4 * page, device=device)[:tokens].int()
    caches = [torch.full((4, page, kv_heads, head_dim), torch.nan, dtype=_BF16, device=device) for _ in range(2)]
    q_out, packed = (torch.full((tokens, q_heads, head_dim), torch.nan, dtype=_BF16, device=device) for _ in range(2))
    rotate_and_store(q, k, v, None, slots, slots, *caches, q_out, packed_out=packed)
    assert torch.equal(q_out, q)
    assert torch.equal(packed.view(tokens, 2, 2, -1), q.view(tokens, 2, 2, -1).transpose(1, 2))
    for cache, new in zip(caches, (k, v), strict=True):
        assert torch.equal(cache.flatten(0, 1)[slots.long()], new)


def test_merge_equals_attention_over_both_parts(device: torch.device) -> None:
    rows, q_heads, kv_heads, head_dim, grouped = 4, 6, 2, 64, 3
    scores = torch.randn(rows, q_heads, 20, device=device)
    values = torch.randn(rows, q_heads, 20, head_dim, device=device)

    def attend(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        s, v = scores[..., part], values[..., part, :]
        return (s.softmax(-1).unsqueeze(-2) @ v).squeeze(-2).to(_BF16), s.logsumexp(-1) / torch.log(torch.tensor(2.0))

    def packed(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (kv_heads, -1)).transpose(1, 2).contiguous().view(x.shape)

    own, own_lse = attend(slice(0, 5))
    prefix, prefix_lse = attend(slice(5, 20))
    whole, _ = attend(slice(0, 20))
    untouched = own[grouped:].clone()
    count = torch.tensor([grouped], dtype=torch.int32, device=device)
    merge_prefix(own, own_lse, packed(prefix), packed(prefix_lse), count, kv_heads)
    assert _error(own[:grouped], whole[:grouped]) < 1e-2
    assert torch.equal(own[grouped:], untouched)


def test_page_writes_and_decode_inputs(device: torch.device) -> None:
    page_size, generator = 4, torch.Generator().manual_seed(torch.seed() % 2**31)
    table = torch.randint(1, 99, (6, 300), generator=generator, dtype=torch.int32).to(device)
    writes = torch.tensor([[2, 0, 7], [3, 299, 8], [2, 5, 9]], dtype=torch.int32, device=device)
    expected = table.clone()
    expected[[2, 3, 2], [0, 299, 5]] = writes[:, 2]
    write_pages(table, writes)
    assert torch.equal(table, expected)

    rows, seq_lens, first = [2, 5, 3], [21, 1, 1200], [2, 0, 100]
    counts = [-(-n // page_size) - f for n, f in zip(seq_lens, first, strict=True)]
    indptr = [0, *torch.tensor(counts).cumsum(0).tolist()]
    next_tokens = torch.randint(0, 1000, (6,), generator=generator, dtype=torch.int32).to(device)
    ids, positions, slots = (torch.full((3,), -7, dtype=torch.int32, device=device) for _ in range(3))
    indices = torch.full((indptr[-1] + 3,), -7, dtype=torch.int32, device=device)
    on = [torch.tensor(x, dtype=torch.int32, device=device) for x in (rows, seq_lens, first, indptr)]
    decode_inputs(table, next_tokens, *on, ids, positions, slots, indices, page_size)
    assert ids.tolist() == [int(next_tokens[r]) for r in rows]
    assert positions.tolist() == [n - 1 for n in seq_lens]
    assert slots.tolist() == [
        int(table[r, (n - 1) // page_size]) * page_size + (n - 1) % page_size
        for r, n in zip(rows, seq_lens, strict=True)
    ]
    wanted = [p for r, f, c in zip(rows, first, counts, strict=True) for p in table[r, f : f + c].tolist()]
    assert indices.tolist() == [*wanted, -7, -7, -7]


def test_argmax_takes_the_first_of_equals(device: torch.device) -> None:
    logits = torch.randn(3, 10_000, device=device)
    logits[1, 77] = logits[1, 9_000] = 50.0
    out = torch.full((3,), -7, dtype=torch.int32, device=device)
    next_tokens = torch.full((5,), -7, dtype=torch.int32, device=device)
    rows = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
    argmax_into(logits, rows, out, next_tokens)
    assert out.tolist() == [int(logits[0].argmax()), 77, int(logits[2].argmax())]
    assert next_tokens.tolist() == [out.tolist()[1], -7, out.tolist()[2], -7, out.tolist()[0]]


def test_argmax_reports_what_is_not_finite(device: torch.device) -> None:
    logits = torch.randn(2, 5_000, device=device)
    logits[0, 4_321] = torch.nan
    out = torch.zeros(2, dtype=torch.int32, device=device)
    argmax_into(logits, torch.tensor([0, 1], dtype=torch.int32, device=device), out, torch.zeros_like(out))
    assert out.tolist() == [-1, int(logits[1].argmax())]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "norm", "gated", "add"])
def test_gemv(device: torch.device, batch: int, kind: str) -> None:
    size, columns = 576, 96
    weight = _random(device, columns * (2 if kind == "gated" else 1), size)
    x, norm, out = _random(device, batch, size), _random(device, size), _random(device, batch, columns)
    before = out.float()
    normed = kind in ("norm", "gated")
    gemv(
        x,
        weight,
        out,
        GemvTile(8, 256, 4),
        norm=(norm, 1e-5) if normed else None,
        gated=kind == "gated",
        add=kind == "add",
    )
    ready = F.rms_norm(x.float(), (size,), norm.float(), 1e-5) if normed else x.float()
    expected = ready @ weight.float().T
    if kind == "gated":
        expected = F.silu(expected[:, :columns]) * expected[:, columns:]
    if kind == "add":
        expected += before
    assert _error(out, expected) < 5e-3


@pytest.mark.parametrize("length", [1, 7, 33, 700])
def test_decode_attention(device: torch.device, length: int) -> None:
    batch, q_heads, kv_heads, head_dim, page = 2, 8, 2, 64, 16
    dtype = _BF16 if device.type == "cuda" else torch.float16  # the interpreter multiplies no bf16 matrices
    lens = [length, length + 5]
    counts = [-(-n // page) for n in lens]
    order = torch.randperm(sum(counts), device=device).int() + 1
    indptr = torch.tensor([0, counts[0], sum(counts)], dtype=torch.int32, device=device)
    caches = [_random(device, sum(counts) + 2, page, kv_heads, head_dim).to(dtype) for _ in range(2)]
    qkv = _random(device, batch, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    angles = torch.rand(1024, head_dim // 2, device=device) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.tensor([n - 1 for n in lens], dtype=torch.int32, device=device)
    pages = [order[indptr[i] : indptr[i + 1]].long() for i in range(batch)]
    slots = torch.stack([pages[i][-1] * page + (lens[i] - 1) % page for i in range(batch)]).int()
    out = torch.full((batch, q_heads * head_dim), torch.nan, dtype=dtype, device=device)
    scratch = DecodeScratch.make(batch, q_heads, kv_heads, head_dim, device)

    heads = qkv.view(batch, -1, head_dim)
    q, k, v = heads.split((q_heads, kv_heads, kv_heads), dim=1)
    expected_caches = [cache.clone() for cache in caches]
    rotated = torch.empty_like(q.contiguous())
    rotate_and_store(q, k, v, table, positions, slots, *expected_caches, rotated)
    for _ in range(2):  # the second time finds the counters as the first left them
        decode_attention(
            qkv, table, positions, slots, indptr, order, *caches, out, scratch, dependent=device.type == "cuda"
        )
    for cache, expected in zip(caches, expected_caches, strict=True):
        assert torch.equal(cache, expected)
    for i in range(batch):
        keys, values = (cache[pages[i]].flatten(0, 1)[: lens[i]].float() for cache in caches)
        keys, values = (x.repeat_interleave(q_heads // kv_heads, dim=1).transpose(0, 1) for x in (keys, values))
        scores = rotated[i].float().unsqueeze(1) @ keys.transpose(1, 2) / head_dim**0.5
        expected_out = (scores.softmax(-1) @ values).squeeze(1)
        assert _error(out[i].view(q_heads, head_dim), expected_out) < 1e-2


def test_draws_invert_the_filtered_distribution(device: torch.device) -> None:
    vocab, rows = 9_000, 6
    logits = torch.randn(rows, vocab, device=device) * 3
    at = torch.tensor([4, 0, 2, 5, 3], dtype=torch.int32, device=device)
    wishes = torch.tensor(
        [
            [0.7, 1.0, 0.0, 0.3],
            [1.0, 0.8, 0.0, 0.9],
            [1.3, 1.0, 0.2, 0.5],
            [1.0, 0.9, 0.05, 0.99],
            [0.5, 0.7, 0.0, 0.01],
        ],
        device=device,
    )
    top_k = torch.tensor([vocab, vocab, 40, 100, 3], dtype=torch.int32, device=device)
    out = torch.zeros(rows, dtype=torch.int32, device=device)
    out[5] = -1
    places = torch.tensor([7, 6, 5, 4, 3, 2], dtype=torch.int32, device=device)
    next_tokens = torch.full((9,), -7, dtype=torch.int32, device=device)
    sample_into(logits, at, wishes, top_k, places, out, next_tokens)
    for i, row in enumerate(at.tolist()):
        if row == 5:
            assert int(out[row]) == -1
            continue
        temperature, top_p, min_p, uniform = wishes[i].double().tolist()
        probs = (logits[row].double() / temperature).softmax(-1)
        best, order = probs.sort(descending=True)
        kept = (
            (torch.arange(vocab, device=device) < top_k[i])
            & (best.cumsum(0) - best <= top_p)
            & (best >= min_p * best[0])
        )
        filtered = torch.zeros_like(probs)
        filtered[order[kept]] = best[kept]
        cumulative = filtered.cumsum(0) / filtered.sum()
        token = int(out[row])
        assert filtered[token] > 0
        assert cumulative[token] - filtered[token] / filtered.sum() - 1e-5 <= uniform <= cumulative[token] + 1e-5
        assert int(next_tokens[places[row]]) == token
    assert int(out[1]) == 0 and int(next_tokens[6]) == -7  # not asked for


def test_paged_decode(device: torch.device) -> None:
    q_heads, kv_heads, head_dim, page = 8, 2, 64, 16
    dtype = _BF16 if device.type == "cuda" else torch.float16
    lens = [1, 16, 130]
    counts = [-(-n // page) for n in lens]
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device)
    order = torch.randperm(sum(counts), device=device).int() + 1
    caches = [_random(device, sum(counts) + 2, page, kv_heads, head_dim).to(dtype) for _ in range(2)]
    q = _random(device, len(lens), q_heads, head_dim).to(dtype)
    last = torch.tensor([(n - 1) % page + 1 for n in lens], dtype=torch.int32, device=device)
    out, lse = torch.full_like(q, torch.nan), torch.full((len(lens), q_heads), torch.nan, device=device)
    paged_decode(q, *caches, indptr, order, last, out, lse)
    for i, length in enumerate(lens):
        pages = order[indptr[i] : indptr[i + 1]].long()
        keys, values = (cache[pages].flatten(0, 1)[:length].float() for cache in caches)
        keys, values = (x.repeat_interleave(q_heads // kv_heads, dim=1).transpose(0, 1) for x in (keys, values))
        scores = q[i].float().unsqueeze(1) @ keys.transpose(1, 2) / head_dim**0.5
        assert _error(out[i], (scores.softmax(-1) @ values).squeeze(1)) < 1e-2
        expected = (scores.logsumexp(-1) / torch.log(torch.tensor(2.0))).squeeze(1)
        assert torch.allclose(lse[i], expected, atol=2e-2)
