"""Finds the running requests that share a cached prefix, so that attention can read it once for all of them.

A page holds one prefix only, so equal leading pages mean equal leading tokens: the page table tells all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.engine.batch import Int32s

Int64s = npt.NDArray[np.int64]

MIN_CASCADE_ROWS = 16
MAX_GROUPS = 32


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Decodes `members` (indices in the batch, at least two) whose first pages are `pages`."""

    members: Int64s
    pages: Int32s

    @property
    def saved_pages(self) -> int:
        """Page reads that attending to the prefix once spares."""
        return (len(self.members) - 1) * len(self.pages)


@dataclass(frozen=True, slots=True)
class CascadeCost:
    """What reading prefixes apart costs a layer, in token reads it must spare before it pays: a fixed part for two more
    launches, and a part by the length of the longest prefix, which one block reads from end to end."""

    fixed_tokens: int
    per_prefix_token: int


# Measured on an H200 with 8 KV heads of 128 (docs/performance.md).
CASCADE_COST = CascadeCost(fixed_tokens=16_000, per_prefix_token=30)


@dataclass(frozen=True, slots=True)
class Grouping:
    """A batch ordered by group: its first `num_grouped` sequences in this order belong to `groups`, one after the
    other; the others stand alone. Of each kind the longest come first, so that none is left when all else is done."""

    order: Int64s  # [R], indices in the batch
    first_pages: Int32s  # [R], aligned with `order`: pages that the group reads for the sequence
    groups: tuple[PrefixGroup, ...]
    num_grouped: int


def group_by_prefix(pages: Int32s, seq_lens: Int32s, *, page_size: int, cost: CascadeCost, max_groups: int) -> Grouping:
    """Choose the groups that save most. `pages` [R, longest] are the page table's rows of the decodes.

    The page of a sequence's newest token is always its own.
    """
    shareable = (seq_lens.astype(np.int64) - 1) // page_size
    found: list[PrefixGroup] = []
    with_prefix = np.flatnonzero(shareable > 0)
    for members in _split(pages, with_prefix, 0):
        found.extend(_best_groups(pages, shareable, members, 0))
    found = sorted(found, key=lambda group: -group.saved_pages)[:max_groups]
    return _arrange(seq_lens, _worthy(found, page_size, cost))


def alone(seq_lens: Int32s) -> Grouping:
    """No groups."""
    return _arrange(seq_lens, [])


def _worthy(groups: list[PrefixGroup], page_size: int, cost: CascadeCost) -> list[PrefixGroup]:
    """Those of `groups` that together gain most; none if that is not worth it."""
    best: list[PrefixGroup] = []
    most = 0
    for longest in {len(group.pages) for group in groups}:
        chosen = [group for group in groups if len(group.pages) <= longest]
        saved = sum(group.saved_pages for group in chosen)
        gain = (saved - cost.per_prefix_token * longest) * page_size - cost.fixed_tokens
        if gain > most:
            best, most = chosen, gain
    return best


def _arrange(seq_lens: Int32s, groups: list[PrefixGroup]) -> Grouping:
    batch_size = len(seq_lens)
    single = np.ones(batch_size, np.bool_)
    for group in groups:
        single[group.members] = False
    sets = [*(group.members for group in groups), np.flatnonzero(single)]
    order = np.concatenate([members[np.argsort(-seq_lens[members], kind="stable")] for members in sets])
    first_pages = np.zeros(batch_size, np.int32)
    num_grouped = 0
    for group in groups:
        first_pages[num_grouped : num_grouped + len(group.members)] = len(group.pages)
        num_grouped += len(group.members)
    return Grouping(order, first_pages, tuple(groups), num_grouped)


def _split(pages: Int32s, members: Int64s, depth: int) -> list[Int64s]:
    """Partition `members` by their page at `depth`; those who are alone with theirs are left out."""
    if len(members) < 2:
        return []
    keys = pages[members, depth]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1, append=-1))
    return [members[order[a:b]] for a, b in zip(starts, starts[1:], strict=False) if b - a > 1]


def _best_groups(pages: Int32s, shareable: Int64s, members: Int64s, depth: int) -> list[PrefixGroup]:
    """One group of all `members`, who share their first `depth` + 1 pages at least, or groups of those among them who
    share more: whichever spares more reads."""
    limit = int(shareable[members].min())
    differs = (pages[members[1:], depth:limit] != pages[members[0], depth:limit]).any(axis=0)
    common = depth + (int(differs.argmax()) if differs.any() else limit - depth)
    whole = PrefixGroup(members, pages[members[0], :common])
    longer = members[shareable[members] > common]
    parts = [group for some in _split(pages, longer, common) for group in _best_groups(pages, shareable, some, common)]
    return parts if sum(part.saved_pages for part in parts) > whole.saved_pages else [whole]
