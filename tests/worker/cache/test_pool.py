"""The pool: free pages first, then cached ones; nothing leaks unseen."""

from __future__ import annotations

import numpy as np
import pytest

from worker.cache.pool import KvPool
from worker.cache.radix import RadixCache


def key(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def test_alloc_evicts_only_what_is_missing() -> None:
    pool = KvPool(6, RadixCache(2))
    pages = pool.alloc(4)
    pool.cache.insert(key(1, 2, 3, 4, 5, 6), pages[:3], None)
    assert (pool.free_tokens, pool.available_tokens, pool.used_tokens) == (4, 10, 2)
    assert len(pool.alloc(3)) == 3
    assert pool.cache.evictable_tokens == 4
    assert pool.usage == pytest.approx(8 / 12)


def test_more_than_available_is_an_assertion() -> None:
    pool = KvPool(4, RadixCache(1))
    pages = pool.alloc(2)
    pool.cache.lock(pool.cache.insert(key(1, 2), pages, None).node)
    with pytest.raises(AssertionError, match="3 pages wanted, 2 free"):
        pool.alloc(3)


def test_flush_makes_everything_free() -> None:
    pool = KvPool(4, RadixCache(1))
    pool.cache.insert(key(1, 2), pool.alloc(2), None)
    assert pool.free_tokens == 2
    pool.flush()
    assert pool.free_tokens == 4
    pool.check(0, idle=True)


def test_check_counts_free_cached_and_used() -> None:
    pool = KvPool(5, RadixCache(1))
    node = pool.cache.insert(key(1, 2), pool.alloc(2), None).node
    pool.alloc(1)
    pool.check(1, idle=False)
    with pytest.raises(AssertionError, match="KV pool leaks: 2 free \\+ 2 cached \\+ 0 used tokens are not 5"):
        pool.check(0, idle=False)
    pool.cache.lock(node)
    with pytest.raises(AssertionError, match="2 cached tokens locked while idle"):
        pool.check(1, idle=True)
