"""The flat int32 arrays that a pass reads on the device, computed on the host from the scheduler's batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.engine.batch import Int32s

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeArrays:
    """Decodes, padded to the size of a graph: padding reads the dummy row, whose only page is page 0."""

    rows: Int32s  # [B]
    seq_lens: Int32s  # [B]
    first_pages: Int32s  # [B], leading pages that a prefix group reads instead
    indptr: Int32s  # [B + 1], running sums of the pages each sequence reads itself
    last_page_lens: Int32s  # [B], tokens in its last page
    own_lens: Int32s  # [B], tokens in those pages


def decode_arrays(
    rows: Int32s, seq_lens: Int32s, first_pages: Int32s, *, page_size: int, size: int, dummy_row: int
) -> DecodeArrays:
    """Arrays of `size` >= len(rows) sequences."""
    count = len(rows)
    padded_rows = np.full(size, dummy_row, np.int32)
    padded_rows[:count] = rows
    padded_lens = np.ones(size, np.int32)
    padded_lens[:count] = seq_lens
    padded_first = np.zeros(size, np.int32)
    padded_first[:count] = first_pages
    indptr = np.zeros(size + 1, np.int32)
    np.cumsum(-(-padded_lens // page_size) - padded_first, out=indptr[1:])
    return DecodeArrays(
        rows=padded_rows,
        seq_lens=padded_lens,
        first_pages=padded_first,
        indptr=indptr,
        last_page_lens=(padded_lens - 1) % page_size + 1,
        own_lens=padded_lens - padded_first * page_size,
    )


@dataclass(frozen=True, slots=True)
class PageLists:
    """Which pages each of N sequences attends to, and which queries are its."""

    query_indptr: Int32s  # [N + 1]
    indptr: Int32s  # [N + 1], into `indices`
    indices: Int32s  # pages, flat
    last_page_lens: Int32s  # [N]
    kv_lens: Int32s  # [N], tokens


def page_lists(pages: Int32s, rows: Int32s, query_lens: Int32s, seq_lens: Int32s, page_size: int) -> PageLists:
    """Page lists of prefill chunks. `pages` is the page table."""
    counts = -(-seq_lens // page_size)
    return PageLists(
        query_indptr=running_sums(query_lens),
        indptr=running_sums(counts),
        indices=np.concatenate([pages[row, :count] for row, count in zip(rows, counts, strict=True)]),
        last_page_lens=(seq_lens - 1) % page_size + 1,
        kv_lens=seq_lens,
    )


def prefix_lists(
    groups: list[tuple[int, Int32s]], *, num_groups: int, queries_per_row: int, page_size: int
) -> PageLists:
    """Page lists of prefix groups (members, pages), padded to `num_groups` with groups that have no queries."""
    members = np.zeros(num_groups, np.int32)
    counts = np.zeros(num_groups, np.int32)
    members[: len(groups)] = [count for count, _ in groups]
    counts[: len(groups)] = [len(pages) for _, pages in groups]
    return PageLists(
        query_indptr=running_sums(members * queries_per_row),
        indptr=running_sums(counts),
        indices=np.concatenate([pages for _, pages in groups]) if groups else np.zeros(1, np.int32),
        last_page_lens=np.full(num_groups, page_size, np.int32),
        kv_lens=counts * page_size,
    )


def running_sums(values: Int32s) -> Int32s:
    """[0, v0, v0 + v1, ...] as int32."""
    sums = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values, out=sums[1:])
    return sums
