"""The page table and the next-token table on the device: updates, and the inputs that a decode pass reads from them."""

from __future__ import annotations

import torch
import triton.language as tl

from worker.layers.cuda.jit import kernel, kernel_for_any

_BLOCK = 256


@kernel_for_any("count")
def _write_pages(
    table_ptr: tl.tensor, writes_ptr: tl.tensor, count: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    row = tl.load(writes_ptr + at * 3, mask=mask, other=0).to(tl.int64)
    index = tl.load(writes_ptr + at * 3 + 1, mask=mask, other=0)
    page = tl.load(writes_ptr + at * 3 + 2, mask=mask, other=0)
    tl.store(table_ptr + row * stride + index, page, mask=mask)


def write_pages(table: torch.Tensor, writes: torch.Tensor) -> None:
    """table[row, index] = page for each (row, index, page) of `writes` int32 [W, 3].

    Equal (row, index) must carry equal pages: the order of the writes is not kept.
    """
    count = writes.shape[0]
    if count:
        _write_pages[(-(-count // _BLOCK),)](table, writes, count, table.stride(0), BLOCK=_BLOCK)


@kernel
def _decode_inputs(
    table_ptr: tl.tensor,
    next_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    first_pages_ptr: tl.tensor,
    indptr_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    indices_ptr: tl.tensor,
    stride: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    sequence = tl.program_id(0)
    row = tl.load(rows_ptr + sequence).to(tl.int64)
    position = tl.load(seq_lens_ptr + sequence) - 1
    page = tl.load(table_ptr + row * stride + position // PAGE_SIZE)
    tl.store(ids_ptr + sequence, tl.maximum(tl.load(next_ptr + row), 0))  # -1 = a failed pass
    tl.store(positions_ptr + sequence, position)
    tl.store(slots_ptr + sequence, page * PAGE_SIZE + position % PAGE_SIZE)
    first = tl.load(first_pages_ptr + sequence)
    start = tl.load(indptr_ptr + sequence)
    count = tl.load(indptr_ptr + sequence + 1) - start
    for block in range(0, count, BLOCK):
        at = block + tl.arange(0, BLOCK)
        pages = tl.load(table_ptr + row * stride + first + at, mask=at < count, other=0)
        tl.store(indices_ptr + start + at, pages, mask=at < count)


def decode_inputs(
    table: torch.Tensor,
    next_tokens: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    first_pages: torch.Tensor,
    indptr: torch.Tensor,
    ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    indices: torch.Tensor,
    page_size: int,
) -> None:
    """Fill what a decode pass of `rows` [R] computes on: input `ids`, `positions` and cache `slots` [R], and `indices`,
    the pages that each sequence's own attention reads: table[row, first_page : first_page + count], flat, where
    `indptr` [R + 1] holds the running sums of the counts. All int32.
    """
    _decode_inputs[(rows.shape[0],)](
        table,
        next_tokens,
        rows,
        seq_lens,
        first_pages,
        indptr,
        ids,
        positions,
        slots,
        indices,
        table.stride(0),
        PAGE_SIZE=page_size,
        BLOCK=128,
        num_warps=4,
    )
