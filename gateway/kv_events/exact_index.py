"""Which blocks of tokens each worker holds, as it says itself. Pure.

A worker names blocks as it likes. Here each is known by a hash of its tokens and all before them, so that what
different makers' workers hold can be compared with a prompt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Container, Sequence

from common.kv_events import (
    GPU,
    TOKEN_BYTES,
    AllBlocksCleared,
    BlockId,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    chain,
    extras_of,
    salt,
)

BLOCK_BYTES = 400  # of memory for a block, measured: two entries of dictionaries with their numbers


class _Holding:
    """What one life holds. `contents`: content hashes, with how many of the worker's blocks have that content."""

    __slots__ = ("block_size", "contents", "names", "promised", "shared_tokens")

    def __init__(self, block_size: int, shared_tokens: int) -> None:
        self.block_size = block_size
        self.shared_tokens = shared_tokens
        self.contents: dict[int, int] = {}
        self.names: dict[BlockId, int] = {}
        self.promised: OrderedDict[int, float] = OrderedDict()  # content -> when it must be there, in order of entry


class ExactIndex:
    """Blocks by worker life. A life is followed from `begin` to `end`; of one that is not, nothing is known.

    `max_blocks`: of all lives together. When there are more, the life with the most is not followed any longer:
    `dropped` counts those, and the caller falls back to guessing for it.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holdings: dict[int, _Holding] = {}
        self._num_blocks = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def lives(self) -> Collection[int]:
        """Those that are followed."""
        return self._holdings.keys()

    def block_sizes(self) -> set[int]:
        """Tokens of a block, of all the workers that have told."""
        return {holding.block_size for holding in self._holdings.values() if holding.block_size}

    def begin(self, life: int, block_size: int = 0, shared_tokens: int = 0) -> None:
        """Follow a life, which holds nothing yet. `block_size`: 0 if its first block is to tell. `shared_tokens`: for a
        beginning so long others wait while one computes it; a shorter one each computes itself, if they meet there."""
        self.end(life)
        self._holdings[life] = _Holding(block_size, shared_tokens)

    def end(self, life: int) -> None:
        """Forget what a life holds, and that it was followed."""
        holding = self._holdings.pop(life, None)
        if holding is not None:
            self._num_blocks -= len(holding.names)

    def retain(self, lives: Collection[int]) -> None:
        """Forget all other lives."""
        for life in [life for life in self._holdings if life not in lives]:
            self.end(life)

    def size(self, life: int) -> int:
        """Blocks that a life holds."""
        holding = self._holdings.get(life)
        return len(holding.names) if holding is not None else 0

    def apply(self, life: int, events: Sequence[CacheEvent]) -> bool:
        """Follow what a life says. Returns False if it is not followed, or was just given up for lack of room."""
        holding = self._holdings.get(life)
        if holding is None:
            return False
        before = len(holding.names)
        for event in events:
            match event:
                case BlockStored():
                    _store(holding, event)
                case BlockRemoved():
                    if _counts(event):
                        _remove(holding, event.block_hashes)
                case AllBlocksCleared():
                    holding.names.clear()
                    holding.contents.clear()
                    holding.promised.clear()
        self._num_blocks += len(holding.names) - before
        while self._num_blocks > self._max_blocks:
            self.end(max(self._holdings, key=self.size))
            self.dropped += 1
        return life in self._holdings

    def promise(self, life: int, hashes: Sequence[int], until_s: float) -> None:
        """A life is going to hold these blocks; if it does not at `until_s`, it never will."""
        holding = self._holdings.get(life)
        if holding is not None:
            for block in hashes:
                if block not in holding.contents:
                    holding.promised.setdefault(block, until_s)

    def withdraw(self, life: int, hashes: Sequence[int]) -> None:
        """It is not, after all."""
        holding = self._holdings.get(life)
        if holding is not None:
            for block in hashes:
                holding.promised.pop(block, None)

    def block_size(self, life: int) -> int | None:
        """Tokens of this life's blocks, 0 as long as it has told none; None if it is not followed."""
        holding = self._holdings.get(life)
        return holding.block_size if holding is not None else None

    def matched(self, life: int, hashes: Sequence[int], now_s: float) -> int:
        """Blocks from the start of the chain that a followed life holds, or is going to hold.

        By bisection: caches give up blocks from the ends of sequences, so what they hold of a chain is its beginning.
        """
        holding = self._holdings[life]
        promised = holding.promised
        while promised and next(iter(promised.values())) <= now_s:
            promised.popitem(last=False)
        contents = holding.contents
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            block = hashes[middle - 1]
            if block in contents or block in promised:
                low = middle
            else:
                high = middle - 1
        if low and holding.shared_tokens and hashes[low - 1] not in contents:
            held = _held(contents, hashes, low)
            if (low - held) * holding.block_size < holding.shared_tokens:
                return held
        return low


def _held(contents: Container[int], hashes: Sequence[int], end: int) -> int:
    """Of the chain's first `end` blocks, how many from its start are there."""
    low = 0
    while low < end:
        middle = (low + end + 1) // 2
        if hashes[middle - 1] in contents:
            low = middle
        else:
            end = middle - 1
    return low


def _counts(event: BlockStored | BlockRemoved) -> bool:
    """Whether it is about the blocks that save prefill: on the GPU, of the first (mostly only) group of layers."""
    return event.medium in (None, GPU) and not event.group_idx


def _store(holding: _Holding, event: BlockStored) -> None:
    size = event.block_size
    if not _counts(event) or size < 1 or len(event.token_ids) < size * len(event.block_hashes):
        return
    seed = 0
    if event.parent_block_hash is not None:
        parent = holding.names.get(event.parent_block_hash)
        if parent is None:
            return  # what comes before it is not known, so it can be compared with nothing
        seed = parent
    holding.block_size = size
    packed = array("i", event.token_ids).tobytes()
    for content, name in zip(_contents(event, packed, seed), event.block_hashes, strict=False):
        if name in holding.names:
            continue
        holding.names[name] = content
        holding.contents[content] = holding.contents.get(content, 0) + 1
        holding.promised.pop(content, None)


def _contents(event: BlockStored, packed: bytes, seed: int) -> list[int]:
    """Content hashes of an event's blocks."""
    size, extra_keys = event.block_size, event.extra_keys
    if not extra_keys or not any(extra_keys[1:]):
        extras = extras_of(event) if event.parent_block_hash is None or extra_keys else ()
        return chain(packed, size, salt(extras, seed) if extras else seed)
    contents = []
    for position, own in enumerate(extra_keys[: len(event.block_hashes)]):
        part = packed[position * size * TOKEN_BYTES : (position + 1) * size * TOKEN_BYTES]
        [seed] = chain(part, size, salt(own, seed) if own else seed)
        contents.append(seed)
    return contents


def _remove(holding: _Holding, names: Sequence[BlockId]) -> None:
    contents = holding.contents
    for name in names:
        content = holding.names.pop(name, None)
        if content is None:
            continue
        left = contents[content] - 1
        if left:
            contents[content] = left
        else:
            del contents[content]
