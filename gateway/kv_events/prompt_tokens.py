"""The token ids of a request's prompt, and their hashes in blocks of whatever size workers use."""

from __future__ import annotations

from common.kv_events import TOKEN_BYTES, chain, first_seed


class PromptTokens:
    """`packed`: the ids as int32 bytes; `extra_key`: what else a cached prefix must agree in."""

    __slots__ = ("_hashes", "count", "extra_key", "packed")

    def __init__(self, packed: bytes, extra_key: str | None = None) -> None:
        self.packed = packed
        self.extra_key = extra_key
        self.count = len(packed) // TOKEN_BYTES
        self._hashes: dict[int, list[int]] = {}

    def hashes(self, block_size: int) -> list[int]:
        """Of the whole blocks, as `common.kv_events.chain` has them; worked out once for each size."""
        hashes = self._hashes.get(block_size)
        if hashes is None:
            hashes = self._hashes[block_size] = chain(self.packed, block_size, first_seed(self.extra_key))
        return hashes


UNKNOWN = PromptTokens(b"")  # of a prompt that was not turned into tokens
