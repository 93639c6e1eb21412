"""The prefix cache, seen through a recorder: every block that comes or goes is noted, and sent once a step.

A block is `block_size` tokens, one page or several. It is stored with the last page of it, and gone with that page: the
cache gives up pages from the ends of sequences, so a block's last page never stays behind the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from common.errors import UserError
from common.kv_events import KvEventsConfig, chain, first_seed
from worker.cache.prefix import CacheNode, PageIds, PrefixCache, PrefixInsert, PrefixLookup, PrefixMatch
from worker.config import WorkerSettings
from worker.ipc.messages import CacheChange, CacheChanges, CacheCleared, CacheRemoved, CacheStored
from worker.token_ids import TOKEN_BYTES

MIN_BLOCK_TOKENS = 16  # of blocks made of smaller pages: an event for each token would be most of the work


def block_size_of(page_size: int, wanted: int | None = None) -> int:
    """Tokens of a block: `wanted`, else the page size or a multiple of a small one. Raises UserError if `wanted` is no
    multiple of the page size."""
    if wanted is None:
        return page_size * -(-MIN_BLOCK_TOKENS // page_size)
    if wanted < 1 or wanted % page_size:
        raise UserError(
            f"--kv-events-config: block_size {wanted} is no multiple of the page size {page_size}; leave it out."
        )
    return wanted


def events_config(settings: WorkerSettings) -> KvEventsConfig | None:
    """What --kv-events-config asks for; None if nothing is published."""
    if settings.kv_events_config is None or settings.disable_radix_cache:
        return None
    config = KvEventsConfig.of(settings.kv_events_config)
    return config if config.publisher == "zmq" else None


def recorder_of(
    settings: WorkerSettings, cache: PrefixCache, num_pages: int, send: Callable[[CacheChanges], None]
) -> RecordedCache | None:
    """The recorder in front of a replica's cache; None if nothing is published. Raises UserError."""
    config = events_config(settings)
    if config is None:
        return None
    block_size = block_size_of(cache.page_size, config.block_size)
    return RecordedCache(cache, num_pages, block_size, send)


class RecordedCache:
    """Implements PrefixCache by another one. `send` gets what has changed, when `flush` is called."""

    def __init__(
        self, cache: PrefixCache, num_pages: int, block_size: int, send: Callable[[CacheChanges], None]
    ) -> None:
        self._cache = cache
        self._send = send
        self.page_size = cache.page_size
        self._block_size = block_size
        self._block_pages = block_size // cache.page_size
        self._block_at = np.zeros(num_pages + 1, np.uint64)  # by page: the block that ends with it, or 0
        self._changes: list[CacheChange] = []
        # Straight to the cache: these change nothing.
        self.lookup: Callable[..., PrefixLookup] = cache.lookup
        self.path: Callable[[PrefixLookup], Sequence[CacheNode]] = cache.path
        self.match: Callable[[bytes, str | None], PrefixMatch] = cache.match
        self.count_hit: Callable[[CacheNode], None] = cache.count_hit
        self.lock: Callable[[CacheNode], None] = cache.lock
        self.unlock: Callable[[CacheNode], None] = cache.unlock
        self.pages: Callable[[], Iterator[PageIds]] = cache.pages

    @property
    def enabled(self) -> bool:
        return self._cache.enabled

    @property
    def evictable_tokens(self) -> int:
        return self._cache.evictable_tokens

    @property
    def protected_tokens(self) -> int:
        return self._cache.protected_tokens

    def insert(
        self,
        key: bytes,
        pages: PageIds,
        namespace: str | None,
        priority: int = 0,
        known: tuple[CacheNode, int] | None = None,
    ) -> PrefixInsert:
        inserted = self._cache.insert(key, pages, namespace, priority, known)
        num_known = 0 if known is None else known[1]
        held = num_known + len(inserted.cached_pages)
        first, last = held // self._block_pages, inserted.num_pages // self._block_pages
        if last > first:
            before = np.concatenate((pages[:num_known], inserted.cached_pages))
            self._stored(key, pages, namespace, before, first, last)
        return inserted

    def evict(self, num_pages: int) -> PageIds:
        pages = self._cache.evict(num_pages)
        blocks = self._block_at[pages]
        blocks = blocks[blocks != 0]
        if len(blocks):
            self._block_at[pages] = 0
            self._changes.append(CacheRemoved(blocks=blocks.tolist()))
        return pages

    def reset(self) -> PageIds:
        pages = self._cache.reset()
        self._block_at[:] = 0
        self._changes.append(CacheCleared())
        return pages

    def flush(self) -> None:
        """Send what has changed since the last call."""
        if self._changes:
            changes, self._changes = self._changes, []
            self._send(CacheChanges(changes=changes))

    def _stored(
        self, key: bytes, pages: PageIds, namespace: str | None, cached_pages: PageIds, first: int, last: int
    ) -> None:
        """Blocks `first` to `last` of a sequence are new."""
        size = self._block_pages
        parent = int(self._block_at[cached_pages[first * size - 1]]) if first else None
        tokens = key[first * self._block_size * TOKEN_BYTES : last * self._block_size * TOKEN_BYTES]
        blocks = chain(tokens, self._block_size, parent if parent is not None else first_seed(namespace))
        self._block_at[pages[(first + 1) * size - 1 : last * size : size]] = blocks
        self._changes.append(CacheStored(blocks=blocks, parent=parent, tokens=tokens, namespace=namespace))
