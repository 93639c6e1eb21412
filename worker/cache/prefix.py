"""The seam between the scheduler and a prefix cache: which KV pages already hold the start of a prompt.

Keys are token ids as little-endian int32 bytes; only whole pages are stored. A cached page belongs to the cache alone;
a request that uses it holds a lock on the node where its prefix ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int32]

NO_PAGES: PageIds = np.empty(0, np.int32)


class CacheNode(Protocol):
    """Where a cached prefix ends. Opaque outside the cache; valid while locked."""


class PrefixMatch(msgspec.Struct, frozen=True, eq=False):
    """The longest cached prefix of a key: its pages in order, and the node to lock before anything is evicted."""

    pages: PageIds
    node: CacheNode


class PrefixLookup(Protocol):
    """How much of a key was cached when it was looked up. Opaque otherwise."""

    @property
    def tokens(self) -> int: ...


class PrefixInsert(msgspec.Struct, frozen=True, eq=False):
    """What became of inserted pages.

    The cache already held `cached_pages`, the first of those after the known ones (the caller keeps its own copies and
    should drop them in favour of these). Pages from there up to `num_pages` now belong to the cache; the rest stay the
    caller's.
    """

    cached_pages: PageIds
    num_pages: int
    node: CacheNode


class PrefixCache(Protocol):
    """A map from token prefixes to KV pages. Namespaces never share pages."""

    page_size: int

    @property
    def enabled(self) -> bool:
        """False if nothing is ever found, so looking is wasted."""
        ...

    @property
    def evictable_tokens(self) -> int:
        """Tokens in pages that no request uses."""
        ...

    @property
    def protected_tokens(self) -> int:
        """Tokens in pages under a lock."""
        ...

    def lookup(self, key: bytes, namespace: str | None, last: PrefixLookup | None = None) -> PrefixLookup:
        """Tokens of the longest cached prefix. Changes nothing, not even what is evicted first. `last`, the answer for
        the same key before, makes it cheap while that part of the cache stays as it was."""
        ...

    def path(self, lookup: PrefixLookup) -> Sequence[CacheNode]:
        """The nodes that a prefix just looked up runs through, from the top; the last one it may cover in part."""
        ...

    def match(self, key: bytes, namespace: str | None) -> PrefixMatch:
        """The longest cached prefix, marked as just used."""
        ...

    def insert(
        self,
        key: bytes,
        pages: PageIds,
        namespace: str | None,
        priority: int = 0,
        known: tuple[CacheNode, int] | None = None,
    ) -> PrefixInsert:
        """Store `pages` as the KV of `key`, whose length must be `len(pages)` pages. `priority` is the request's.
        `known`: a node that the request has locked, and how many of the pages end there: these are not looked at. The
        node may grow by the new pages, and the lock with it."""
        ...

    def count_hit(self, node: CacheNode) -> None:
        """A new request starts on the prefix that ends at `node`."""
        ...

    def lock(self, node: CacheNode) -> None:
        """Keep the pages from the root down to `node` from eviction until the matching `unlock`."""
        ...

    def unlock(self, node: CacheNode) -> None:
        """Undo one `lock`."""
        ...

    def evict(self, num_pages: int) -> PageIds:
        """Give up that many unlocked pages (all there are, if fewer), in the order of the eviction policy."""
        ...

    def reset(self) -> PageIds:
        """Give up every page. Nothing may be locked."""
        ...

    def pages(self) -> Iterator[PageIds]:
        """All pages held, in no order: for audits."""
        ...
