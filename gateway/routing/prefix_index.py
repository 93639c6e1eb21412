"""Which prefixes each worker holds, as far as we know: chained hashes of text blocks, least recently used first out.

A worker's cache evicts the least recently used leaf first. The index mirrors that: a chain is touched from its end to
its start, so a block is always more recent than any block behind it, and what is held of a chain is always a prefix.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from sys import getsizeof

from xxhash import xxh3_64_intdigest

from gateway.fleet.worker import WorkerView

BLOCK_BYTES = 256  # of prompt text; about 64 tokens
_ENTRY_BYTES = 80  # of one block beside its place in the table: a hash of 48, a time of 32
_LEAST_SHARE = 64  # at least 1 of so many blocks of the largest table goes when the index is full, for a low mean cost
_SPARSE_BYTES = 512  # of a table for each of its blocks, above which it is built anew


def chain(text: bytes, block_bytes: int = BLOCK_BYTES, seed: int = 0) -> tuple[int, ...]:
    """The hashes of the whole blocks of `text`. Each covers everything before it, and the seed."""
    digest = seed
    hashes = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        digest = xxh3_64_intdigest(text[start : start + block_bytes], digest)
        hashes.append(digest)
    return tuple(hashes)


class PrefixIndex:
    """Blocks by worker life. Never takes more than `max_bytes`, all lives together.

    The bytes are those of the tables as they really are. The largest table counts twice, because when it grows there
    are, for a moment, two of it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tables: dict[int, OrderedDict[int, float]] = {}  # hash -> when last touched
        self._capacities: dict[int, int] = {}  # blocks the worker itself can hold
        self._bytes: dict[int, int] = {}  # of each table, with its blocks
        self._total_bytes = 0
        self._largest_bytes = 0
        self.evicted_blocks = 0

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    @property
    def bytes_used(self) -> int:
        """Memory taken now."""
        return self._total_bytes

    def size(self, life: int) -> int:
        """Blocks thought to be held in this life."""
        return len(self._tables.get(life, ()))

    def holders(self, workers: Sequence[WorkerView], block: int) -> list[WorkerView]:
        """Those of the workers whose present life holds a block."""
        tables, nothing = self._tables, OrderedDict[int, float]()
        return [worker for worker in workers if block in tables.get(worker.life, nothing)]

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
        if not table:
            return matched, capacity
        room = capacity - len(table)
        return matched, room if room > 0 else 0

    def insert(self, life: int, hashes: Sequence[int], now_s: float) -> None:
        """This life holds the whole chain, most recently used. Evicts what does not fit."""
        table = self._tables.get(life)
        if table is None:
            table = self._tables[life] = OrderedDict()
        for block in reversed(hashes):
            table[block] = now_s
            table.move_to_end(block)
        capacity = self._capacities.get(life)
        if capacity is not None and len(table) > capacity:
            self._evict(table, len(table) - capacity)
        self._weigh(life)
        while self._total_bytes + self._largest_bytes > self._max_bytes and self._tables:
            self._shrink()

    def forget(self, life: int, hashes: Sequence[int]) -> None:
        """This life does not hold these blocks, nor anything behind them. `hashes`: a chain's end."""
        table = self._tables.get(life)
        if table is not None:
            for block in hashes:
                table.pop(block, None)
            self._weigh(life)

    def expire(self, life: int, touched_s: float) -> None:
        """The worker has evicted a block last touched at `touched_s`; so it has all that are no younger."""
        table = self._tables.get(life)
        if table is None:
            return
        while table and next(iter(table.values())) <= touched_s:
            table.popitem(last=False)
        self._weigh(life)

    def limit(self, life: int, capacity_blocks: int | None) -> None:
        """What the worker's own cache can hold; None: not known."""
        if capacity_blocks is None:
            self._capacities.pop(life, None)
        elif self._capacities.get(life) != capacity_blocks:
            self._capacities[life] = capacity_blocks
            table = self._tables.get(life)
            if table is not None:
                self._evict(table, len(table) - capacity_blocks)
                self._weigh(life)

    def retain(self, lives: Collection[int]) -> None:
        """Drop every life that is not among these, at once."""
        for life in [life for life in self._tables if life not in lives]:
            self._drop(life)
        for life in [life for life in self._capacities if life not in lives]:
            del self._capacities[life]

    def _weigh(self, life: int) -> None:
        """Enter what a table takes now. One that has lost most of its blocks is built anew: it would not shrink."""
        table, before = self._tables[life], self._bytes.get(life, 0)
        size = getsizeof(table)
        if size > _SPARSE_BYTES * (len(table) + 16):
            table = self._tables[life] = OrderedDict(table)
            size = getsizeof(table)
        size += len(table) * _ENTRY_BYTES
        self._bytes[life] = size
        self._total_bytes += size - before
        if size >= self._largest_bytes:
            self._largest_bytes = size
        elif before == self._largest_bytes:
            self._largest_bytes = max(self._bytes.values())

    def _shrink(self) -> None:
        """Take the oldest blocks of the largest table."""
        life = max(self._bytes, key=self._bytes.__getitem__)
        table = self._tables[life]
        excess = self._total_bytes + self._largest_bytes - self._max_bytes
        self._evict(table, max(excess // (4 * _ENTRY_BYTES), len(table) // _LEAST_SHARE, 1))
        if table:
            self._weigh(life)
        else:
            self._drop(life)

    def _drop(self, life: int) -> None:
        del self._tables[life]
        self._total_bytes -= self._bytes.pop(life, 0)
        self._largest_bytes = max(self._bytes.values(), default=0)

    def _evict(self, table: OrderedDict[int, float], count: int) -> None:
        """Drop the oldest blocks, as many as there are."""
        count = max(min(count, len(table)), 0)
        self.evicted_blocks += count
        for _ in range(count):
            table.popitem(last=False)
