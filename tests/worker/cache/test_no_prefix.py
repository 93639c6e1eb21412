"""The cache that is none: every page stays its owner's."""

from __future__ import annotations

import numpy as np

from worker.cache.no_prefix import NoPrefixCache


def test_takes_nothing_and_finds_nothing() -> None:
    cache = NoPrefixCache(page_size=2)
    key = np.arange(4, dtype=np.int32).tobytes()
    inserted = cache.insert(key, np.array([1, 2], np.int32), None)
    assert inserted.num_pages == 0 and len(inserted.cached_pages) == 0
    cache.lock(inserted.node)
    match = cache.match(key, None)
    assert len(match.pages) == 0 and cache.lookup(key, None).tokens == 0
    cache.unlock(match.node)
    assert cache.evictable_tokens == cache.protected_tokens == 0
    assert len(cache.evict(5)) == 0 and len(cache.reset()) == 0 and not list(cache.pages())
    assert not cache.enabled
