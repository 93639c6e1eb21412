"""Random choice of tokens: temperature, top-k, top-p, min-p and a draw; one program a row, nothing sorted.

The rules are those of worker/engine/sampler.py: every filter is judged on the unfiltered distribution, equals of the
least kept token are kept, and the draw inverts the distribution at one uniform number. Instead of sorting, the program
halves the range of the row's logits until it has the value above which top-k and top-p keep tokens.
"""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel

_BLOCK = 4096
_HALVINGS = 26  # finer than the spacing of fp32 logits near the threshold


@kernel
def _sample(
    logits_ptr: tl.tensor,
    at_ptr: tl.tensor,
    wishes_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    out_ptr: tl.tensor,
    next_ptr: tl.tensor,
    stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HALVINGS: tl.constexpr,
) -> None:
    member = tl.program_id(0)
    at = tl.load(at_ptr + member)
    if tl.load(out_ptr + at) < 0:  # the logits are broken; the greedy choice has found that
        return
    logits = logits_ptr + at.to(tl.int64) * stride
    lanes = tl.arange(0, BLOCK)
    highs = tl.full((BLOCK,), float("-inf"), tl.float32)
    lows = tl.full((BLOCK,), float("inf"), tl.float32)
    for start in range(0, SIZE, BLOCK):
        known = start + lanes < SIZE
        x = tl.load(logits + start + lanes, mask=known, other=0.0)
        highs = tl.maximum(highs, tl.where(known, x, float("-inf")))
        lows = tl.minimum(lows, tl.where(known, x, float("inf")))
    top = tl.max(highs, 0)
    temperature = tl.load(wishes_ptr + member * 4)
    top_p = tl.load(wishes_ptr + member * 4 + 1)
    min_p = tl.load(wishes_ptr + member * 4 + 2)
    uniform = tl.load(wishes_ptr + member * 4 + 3)
    top_k = tl.load(top_k_ptr + member)
    rate = 1.0 / temperature
    floor = top + temperature * tl.log(min_p)  # -inf without min-p
    bound = tl.min(lows, 0) - 1.0  # only tokens above it are kept
    if (top_k < SIZE) | (top_p < 1.0):
        masses = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, SIZE, BLOCK):
            x = tl.load(logits + start + lanes, mask=start + lanes < SIZE, other=float("-inf"))
            masses += tl.exp((x - top) * rate)
        allowed = top_p * tl.sum(masses, 0)
        high_k = top
        high_p = top
        low_k = bound
        low_p = bound
        for _ in range(HALVINGS):
            middle_k = 0.5 * (low_k + high_k)
            middle_p = 0.5 * (low_p + high_p)
            counts = tl.zeros((BLOCK,), tl.int32)
            masses = tl.zeros((BLOCK,), tl.float32)
            for start in range(0, SIZE, BLOCK):
                x = tl.load(logits + start + lanes, mask=start + lanes < SIZE, other=float("-inf"))
                counts += (x > middle_k).to(tl.int32)
                masses += tl.where(x > middle_p, tl.exp((x - top) * rate), 0.0)
            few = tl.sum(counts, 0) < top_k
            light = tl.sum(masses, 0) <= allowed
            high_k = tl.where(few, middle_k, high_k)
            low_k = tl.where(few, low_k, middle_k)
            high_p = tl.where(light, middle_p, high_p)
            low_p = tl.where(light, low_p, middle_p)
        bound = tl.maximum(low_k, low_p)
    masses = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, SIZE, BLOCK):
        x = tl.load(logits + start + lanes, mask=start + lanes < SIZE, other=float("-inf"))
        masses += tl.where((x > bound) & (x >= floor), tl.exp((x - top) * rate), 0.0)
    target = uniform * tl.sum(masses, 0)
    before = tl.zeros((1,), tl.float32)
    found = tl.full((BLOCK,), SIZE, tl.int32)
    last = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, SIZE, BLOCK):
        index = start + lanes
        x = tl.load(logits + index, mask=index < SIZE, other=float("-inf"))
        kept = (x > bound) & (x >= floor)
        mass = tl.where(kept, tl.exp((x - top) * rate), 0.0)
        found = tl.where(kept & (before + tl.cumsum(mass, 0) > target), tl.minimum(found, index), found)
        last = tl.where(kept, index, last)
        before += tl.sum(mass, 0)
    token = tl.min(found, 0)
    token = tl.where(token < SIZE, token, tl.max(last, 0))  # rounding may put the target past the end
    tl.store(out_ptr + at, token)
    tl.store(next_ptr + tl.load(rows_ptr + at), token)


def sample_into(
    logits: torch.Tensor,
    at: torch.Tensor,
    wishes: torch.Tensor,
    top_k: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    next_tokens: torch.Tensor,
) -> None:
    """For each of `at` int32 [M], an index into `logits` fp32 [R, vocab], `rows` and `out` int32 [R]: draw a token into
    out[at] and next_tokens[rows[at]], unless out[at] is negative.

    Aligned with `at`: `wishes` fp32 [M, 4] = temperature > 0, top_p, min_p and the uniform number in [0, 1) that
    decides; `top_k` int32 [M], the vocabulary's size for all.
    """
    if len(at):
        _sample[(len(at),)](
            logits,
            at,
            wishes,
            top_k,
            rows,
            out,
            next_tokens,
            logits.stride(0),
            SIZE=logits.shape[1],
            BLOCK=_BLOCK,
            HALVINGS=_HALVINGS,
            num_warps=8,
        )
