"""The KV pool of a replica: free pages plus the prefix cache that fills the idle ones."""

from __future__ import annotations

from worker.cache.allocator import PageAllocator
from worker.cache.prefix import PageIds, PrefixCache


class KvPool:
    """Allocates pages, evicting cached ones when no free ones are left. Every page is free, cached or a request's."""

    def __init__(self, num_pages: int, cache: PrefixCache) -> None:
        self.cache = cache
        self.page_size = cache.page_size
        self.num_pages = num_pages
        self._allocator = PageAllocator(num_pages)

    @property
    def total_tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def free_tokens(self) -> int:
        return self._allocator.num_free * self.page_size

    @property
    def available_tokens(self) -> int:
        """Free or evictable."""
        return self._allocator.num_free * self.page_size + self.cache.evictable_tokens

    @property
    def used_tokens(self) -> int:
        """Held for running requests, their cached prefixes included. 0 on an idle server."""
        return self.total_tokens - self.available_tokens

    @property
    def usage(self) -> float:
        """Share of the pool in use, 0..1."""
        return self.used_tokens / self.total_tokens

    def alloc(self, num_pages: int) -> PageIds:
        """Take pages, evicting as needed. `num_pages * page_size` must not exceed `available_tokens`."""
        self.make_free(num_pages)
        return self._allocator.alloc(num_pages)

    def free(self, pages: PageIds) -> None:
        """Give back pages that belong to a request; the array must not change afterwards."""
        self._allocator.free(pages)

    def make_free(self, num_pages: int) -> None:
        """Evict cached pages until `num_pages` are free, or nothing evictable is left."""
        missing = num_pages - self._allocator.num_free
        if missing > 0:
            self._allocator.free(self.cache.evict(missing))

    def flush(self) -> None:
        """Empty the prefix cache. Nothing in it may be locked."""
        self._allocator.free(self.cache.reset())

    def check(self, request_pages: int, *, idle: bool) -> None:
        """Raise AssertionError unless free + cached + `request_pages` (held outside the cache) are the whole pool."""
        cached = self.cache.evictable_tokens + self.cache.protected_tokens
        counted = len(self._allocator.free_pages()) * self.page_size + cached + request_pages * self.page_size
        assert counted == self.total_tokens, (
            f"KV pool leaks: {self.free_tokens} free + {cached} cached + {request_pages * self.page_size} used "
            f"tokens are not {self.total_tokens}"
        )
        if idle:
            assert self.cache.protected_tokens == 0, f"{self.cache.protected_tokens} cached tokens locked while idle"
            assert request_pages == 0, f"{request_pages} pages held while idle"
