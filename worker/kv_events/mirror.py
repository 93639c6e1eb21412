"""The frontend's copy of what the prefix cache holds: turns changes into events, and answers who joins late."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from common.kv_events import GPU, AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from worker.ipc.messages import CacheChange, CacheCleared, CacheRemoved, CacheStored
from worker.token_ids import TOKEN_BYTES


class _Block(NamedTuple):
    parent: int | None
    tokens: bytes
    namespace: str | None


class Mirror:
    """Blocks by hash. A block comes after its parent: the cache has no block without the one before it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[int, _Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, changes: Sequence[CacheChange]) -> list[CacheEvent]:
        """Follow the changes of a step. Returns them as events."""
        return [self._apply(change) for change in changes]

    def snapshot(self, max_blocks: int) -> Iterator[list[CacheEvent]]:
        """All blocks as they are at this call, in lists of about so many; the first begins with AllBlocksCleared."""
        blocks = iter(list(self._blocks.items()))
        events: list[CacheEvent] = [AllBlocksCleared()]
        while part := list(islice(blocks, max_blocks)):
            events += map(self._event, _runs(part))
            yield events
            events = []
        if events:
            yield events

    def _apply(self, change: CacheChange) -> CacheEvent:
        match change:
            case CacheStored(blocks=blocks, parent=parent, tokens=tokens, namespace=namespace):
                size = self._block_size * TOKEN_BYTES
                before = parent
                for position, block in enumerate(blocks):
                    part = tokens[position * size : (position + 1) * size]
                    self._blocks[block] = _Block(before, part, namespace)
                    before = block
                return self._event(change)
            case CacheRemoved(blocks=blocks):
                for block in blocks:
                    del self._blocks[block]
                return BlockRemoved(list(blocks), GPU)
            case CacheCleared():
                self._blocks.clear()
                return AllBlocksCleared()

    def _event(self, stored: CacheStored) -> BlockStored:
        salted = stored.parent is None and stored.namespace
        return BlockStored(
            block_hashes=list(stored.blocks),
            parent_block_hash=stored.parent,
            token_ids=array("i", stored.tokens).tolist(),
            block_size=self._block_size,
            medium=GPU,
            extra_keys=[[stored.namespace], *[None] * (len(stored.blocks) - 1)] if salted else None,
        )


def _runs(blocks: list[tuple[int, _Block]]) -> Iterator[CacheStored]:
    """Blocks that follow each other, joined."""
    start = 0
    for end in range(1, len(blocks) + 1):
        if end < len(blocks) and blocks[end][1].parent == blocks[end - 1][0]:
            continue
        run = blocks[start:end]
        first = run[0][1]
        tokens = b"".join([block.tokens for _, block in run])
        yield CacheStored([name for name, _ in run], first.parent, tokens, first.namespace)
        start = end
