"""Greedy choice: the index of each row's largest logit, in two launches so that one row fills the GPU."""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel, next_power_of_2

_BLOCK = 4096


@kernel
def _argmax_blocks(
    logits_ptr: tl.tensor,
    values_ptr: tl.tensor,
    places_ptr: tl.tensor,
    stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + at, mask=at < SIZE, other=float("-inf")).to(tl.float32)
    value, place = tl.max(logits, 0, return_indices=True, return_indices_tie_break_left=True)
    # a NaN or an infinity anywhere in the block outranks every number
    broken = tl.sum((tl.abs(logits) < float("inf")) == (at >= SIZE), 0) > 0
    value = tl.where(broken, float("inf"), value)
    here = row * tl.num_programs(1) + block
    tl.store(values_ptr + here, value)
    tl.store(places_ptr + here, block * BLOCK + place)


@kernel
def _argmax_rows(
    values_ptr: tl.tensor,
    places_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    out_ptr: tl.tensor,
    next_ptr: tl.tensor,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(values_ptr + row * COUNT + at, mask=at < COUNT, other=float("-inf"))
    block = tl.argmax(values, 0, tie_break_left=True)
    token = tl.load(places_ptr + row * COUNT + block)
    token = tl.where(tl.max(values, 0) == float("inf"), -1, token)
    tl.store(out_ptr + row, token)
    tl.store(next_ptr + tl.load(rows_ptr + row), token)


def num_blocks(vocab_size: int) -> int:
    """Partial results a row has."""
    return -(-vocab_size // _BLOCK)


def argmax_into(logits: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, next_tokens: torch.Tensor) -> None:
    """out[i] = next_tokens[rows[i]] = index of the largest of logits[i], the lowest of equals; -1 if any is not finite.

    `logits` [R, vocab] with contiguous rows; `rows` and `out` int32 [R]; `next_tokens` int32 [rows of the table].
    """
    count, size = logits.shape
    if not count:
        return
    blocks = num_blocks(size)
    values = torch.empty((count, blocks), dtype=torch.float32, device=logits.device)
    places = torch.empty((count, blocks), dtype=torch.int32, device=logits.device)
    _argmax_blocks[(count, blocks)](logits, values, places, logits.stride(0), SIZE=size, BLOCK=_BLOCK, num_warps=8)
    _argmax_rows[(count,)](
        values, places, rows, out, next_tokens, COUNT=blocks, BLOCK=next_power_of_2(blocks), num_warps=1
    )
