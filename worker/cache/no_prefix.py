"""The prefix cache of --disable-radix-cache: finds nothing, keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worker.cache.prefix import NO_PAGES, CacheNode, PageIds, PrefixInsert, PrefixLookup, PrefixMatch


class _Nothing:
    tokens = 0


class NoPrefixCache:
    """Implements PrefixCache without sharing: every page stays its request's own."""

    enabled = False
    evictable_tokens = 0
    protected_tokens = 0

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._node: CacheNode = object()

    def lookup(self, key: bytes, namespace: str | None, last: PrefixLookup | None = None) -> PrefixLookup:
        return _Nothing()

    def path(self, lookup: PrefixLookup) -> Sequence[CacheNode]:
        return ()

    def match(self, key: bytes, namespace: str | None) -> PrefixMatch:
        return PrefixMatch(NO_PAGES, self._node)

    def insert(
        self,
        key: bytes,
        pages: PageIds,
        namespace: str | None,
        priority: int = 0,
        known: tuple[CacheNode, int] | None = None,
    ) -> PrefixInsert:
        return PrefixInsert(NO_PAGES, 0, self._node)

    def count_hit(self, node: CacheNode) -> None:
        pass

    def lock(self, node: CacheNode) -> None:
        pass

    def unlock(self, node: CacheNode) -> None:
        pass

    def evict(self, num_pages: int) -> PageIds:
        return NO_PAGES

    def reset(self) -> PageIds:
        return NO_PAGES

    def pages(self) -> Iterator[PageIds]:
        return iter(())
