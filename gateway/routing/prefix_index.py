"""Which prefixes each worker holds, as far as we know: chained hashes of text blocks, least recently used first out.

A worker's cache evicts the least recently used leaf first. The index mirrors that: a chain is touched from its end to
its start, so a block is always more recent than any block behind it, and what is held of a chain is always a prefix.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 256  # of prompt text; about 64 tokens
_BLOCK_COST_BYTES = 200  # of memory for one block of one worker: key, time, table entry


def chain(text: bytes, block_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    """The hashes of the whole blocks of `text`. Each covers everything before it."""
    digest = 0
    hashes = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        digest = xxh3_64_intdigest(text[start : start + block_bytes], digest)
        hashes.append(digest)
    return tuple(hashes)


class PrefixIndex:
    """Blocks by worker life. Never takes more than `max_bytes`, all lives together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_blocks = max(max_bytes // _BLOCK_COST_BYTES, 1)
        self._tables: dict[int, OrderedDict[int, float]] = {}  # hash -> when last touched
        self._capacities: dict[int, int] = {}  # blocks the worker itself can hold
        self._blocks = 0

    def __len__(self) -> int:
        return self._blocks

    def size(self, life: int) -> int:
        """Blocks thought to be held in this life."""
        return len(self._tables.get(life, ()))

    def matched(self, life: int, hashes: Sequence[int]) -> int:
        """How many blocks from the start of the chain this life holds. By bisection: see the invariant above."""
        table = self._tables.get(life)
        if not table or not hashes or hashes[0] not in table:
            return 0
        low, high = 1, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in table:
                low = middle
            else:
                high = middle - 1
        return low

    def touched_s(self, life: int, block: int) -> float | None:
        """When a block was last touched, None if it is not held."""
        table = self._tables.get(life)
        return table.get(block) if table else None

    def oldest_s(self, life: int) -> float | None:
        """When the block that would go next was last touched."""
        table = self._tables.get(life)
        return next(iter(table.values())) if table else None

    def look_up(self, life: int, hashes: Sequence[int]) -> tuple[int, float]:
        """(blocks matched, blocks that fit without evicting; infinite if the worker's capacity is not known)."""
        table = self._tables.get(life)
        matched = self.matched(life, hashes) if hashes and table and hashes[0] in table else 0
        capacity = self._capacities.get(life)
        if capacity is None:
            return matched, math.inf
        return matched, max(capacity - len(table), 0) if table else capacity

    def insert(self, life: int, hashes: Sequence[int], now_s: float) -> None:
        """This life holds the whole chain, most recently used. Evicts what does not fit."""
        table = self._tables.get(life)
        if table is None:
            table = self._tables[life] = OrderedDict()
        before = len(table)
        for block in reversed(hashes):
            table[block] = now_s
            table.move_to_end(block)
        self._blocks += len(table) - before
        if self._blocks > self._max_blocks or len(table) > self._capacities.get(life, self._max_blocks):
            self._shrink(life)

    def forget(self, life: int, hashes: Sequence[int]) -> None:
        """This life does not hold these blocks, nor anything behind them. `hashes`: a chain's end."""
        table = self._tables.get(life)
        if table is not None:
            for block in hashes:
                if table.pop(block, None) is not None:
                    self._blocks -= 1

    def expire(self, life: int, touched_s: float) -> None:
        """The worker has evicted a block last touched at `touched_s`; so it has all that are no younger."""
        table = self._tables.get(life)
        while table and next(iter(table.values())) <= touched_s:
            table.popitem(last=False)
            self._blocks -= 1

    def limit(self, life: int, capacity_blocks: int | None) -> None:
        """What the worker's own cache can hold; None: not known."""
        if capacity_blocks is None:
            self._capacities.pop(life, None)
        elif self._capacities.get(life) != capacity_blocks:
            self._capacities[life] = capacity_blocks
            self._shrink(life)

    def retain(self, lives: Collection[int]) -> None:
        """Drop every life that is not among these, at once."""
        for life in [life for life in self._tables if life not in lives]:
            self._blocks -= len(self._tables.pop(life))
        for life in [life for life in self._capacities if life not in lives]:
            del self._capacities[life]

    def _shrink(self, life: int) -> None:
        table = self._tables.get(life)
        if table is None:
            return
        excess = len(table) - self._capacities.get(life, len(table))
        for _ in range(excess):
            table.popitem(last=False)
        self._blocks -= max(excess, 0)
        while self._blocks > self._max_blocks:
            largest = max(self._tables.values(), key=len)
            for _ in range(min(self._blocks - self._max_blocks, len(largest))):
                largest.popitem(last=False)
                self._blocks -= 1
