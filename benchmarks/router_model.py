"""A simulated worker without sockets or sleeping: a serial prefill, an LRU cache of text blocks, decodes side by side.

Used in virtual time (router_virtual.py) and behind HTTP (router_workers.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gateway.routing.prefix_index import chain

PREFILL_TOKENS_PER_S = 20_000.0
STEP_S = 0.01


class BlockCache:
    """Chained block hashes, least recently used leaf first out. `capacity` None: endless."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, hashes: Sequence[int]) -> int:
        """Blocks held from the start of the chain."""
        known = 0
        while known < len(hashes) and hashes[known] in self._blocks:
            known += 1
        return known

    def hold(self, hashes: Sequence[int]) -> None:
        """The whole chain is there now, most recently used."""
        blocks = self._blocks
        for block in reversed(hashes):
            blocks[block] = None
            blocks.move_to_end(block)
        while self.capacity is not None and len(blocks) > self.capacity:
            blocks.popitem(last=False)


class WorkerModel:
    """One simulated worker. Its owner moves time: `prefill` says when the first token is due."""

    def __init__(
        self,
        cache_blocks: int | None,
        *,
        block_chars: int = 64,
        block_tokens: int = 16,
        speed: float = PREFILL_TOKENS_PER_S,
        step_s: float = STEP_S,
    ) -> None:
        self.cache = BlockCache(cache_blocks)
        self.block_chars = block_chars
        self.block_tokens = block_tokens
        self.speed = speed  # prefill tokens/s
        self.free_s = 0.0  # when the prefill in progress and all before it are done
        self.active = 0  # decoding
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._step_s = step_s

    @property
    def capacity_tokens(self) -> int:
        """Of its cache; 0 = endless."""
        return (self.cache.capacity or 0) * self.block_tokens

    @property
    def prefilled_tokens(self) -> int:
        """That were not cached."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def token_s(self) -> float:
        """Time between two tokens of an answer."""
        return self._step_s * (1 + self.active / 64)

    def hashes(self, text: str) -> tuple[int, ...]:
        """The blocks of a text."""
        return chain(text.encode(), self.block_chars)

    def tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(text) * self.block_tokens // self.block_chars

    def prefill(self, text: str, now_s: float) -> tuple[float, int, int]:
        """(when its first token is due, prompt tokens, cached tokens)."""
        hashes = self.hashes(text)
        tokens = self.tokens(text)
        cached = min(self.cache.matched(hashes) * self.block_tokens, max(tokens - 1, 0))
        self.cache.hold(hashes)
        self.requests += 1
        self.prompt_tokens += tokens
        self.cached_tokens += cached
        self.free_s = max(self.free_s, now_s) + (tokens - cached) / self.speed
        return self.free_s, tokens, cached

    def answered(self, text: str) -> None:
        """Prompt and answer are in the cache."""
        self.cache.hold(self.hashes(text))
