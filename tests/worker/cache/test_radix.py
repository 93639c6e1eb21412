"""The radix tree: worked examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from worker.cache.radix import RadixCache


def key(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_match_finds_the_longest_prefix() -> None:
    cache = RadixCache(1)
    cache.insert(key([1, 2, 3]), pages(11, 12, 13), None)
    cache.insert(key([1, 2, 4, 5]), pages(11, 12, 14, 15), None)
    assert cache.match(key([1, 2, 4, 9]), None).pages.tolist() == [11, 12, 14]
    assert cache.match(key([1, 2]), None).pages.tolist() == [11, 12]
    assert cache.match(key([2]), None).pages.tolist() == []
    assert cache.lookup(key([1, 2, 3, 4]), None).tokens == 3


def test_only_whole_pages_match() -> None:
    cache = RadixCache(4)
    cache.insert(key(range(8)), pages(1, 2), None)
    assert cache.lookup(key([*range(7), 99]), None).tokens == 4
    assert cache.lookup(key([0, 1, 2]), None).tokens == 0
    assert cache.match(key(range(11)), None).pages.tolist() == [1, 2]


def test_insert_reports_what_was_there_and_takes_the_rest() -> None:
    cache = RadixCache(1)
    cache.insert(key([1, 2]), pages(11, 12), None)
    inserted = cache.insert(key([1, 2, 3]), pages(21, 22, 23), None)
    assert inserted.cached_pages.tolist() == [11, 12] and inserted.num_pages == 3
    assert cache.match(key([1, 2, 3]), None).pages.tolist() == [11, 12, 23]


def test_what_a_request_adds_to_its_own_node_makes_it_longer() -> None:
    cache = RadixCache(1)
    node = cache.insert(key([1, 2]), pages(11, 12), None).node
    cache.lock(node)
    inserted = cache.insert(key([1, 2, 3]), pages(11, 12, 13), None, 0, (node, 2))
    assert inserted.node is node and inserted.cached_pages.tolist() == [] and inserted.num_pages == 3
    assert cache.protected_tokens == 3
    cache.unlock(node)
    assert (cache.evictable_tokens, cache.protected_tokens) == (3, 0)
    assert cache.evict(1).tolist() == [13]


@pytest.mark.parametrize("why", ["another lock", "a hit", "higher priority", "size"])
def test_a_node_that_others_use_or_that_is_large_stays_as_it_is(why: str) -> None:
    cache = RadixCache(1)
    tokens = range(1 << 14) if why == "size" else [1, 2]
    node = cache.insert(key(tokens), pages(*tokens), None).node
    cache.lock(node)
    if why == "another lock":
        cache.lock(node)
    elif why == "a hit":
        cache.count_hit(node)
    priority = -1 if why == "higher priority" else 0
    inserted = cache.insert(key([*tokens, 3]), pages(*tokens, 13), None, priority, (node, len(tokens)))
    assert inserted.node is not node
    assert (cache.evictable_tokens, cache.protected_tokens) == (1, len(tokens))
    cache.lock(inserted.node)
    again = cache.insert(key([*tokens, 4]), pages(*tokens, 14), None, priority, (node, len(tokens)))
    assert again.node is not inserted.node and again.cached_pages.tolist() == []


def test_a_lookup_knows_that_a_node_has_grown() -> None:
    cache = RadixCache(1)
    node = cache.insert(key([1, 2]), pages(11, 12), None).node
    cache.lock(node)
    before = cache.lookup(key([1, 2, 3, 4]), None)
    assert before.tokens == 2
    cache.insert(key([1, 2, 3]), pages(11, 12, 13), None, 0, (node, 2))
    assert cache.lookup(key([1, 2, 3, 4]), None, before).tokens == 3


def test_a_key_must_fit_its_pages() -> None:
    with pytest.raises(AssertionError, match="one whole page of tokens per page id"):
        RadixCache(4).insert(key([1, 2, 3]), pages(1), None)


def test_namespaces_share_nothing() -> None:
    cache = RadixCache(1)
    cache.insert(key([1, 2]), pages(11, 12), None)
    cache.insert(key([1, 2]), pages(21, 22), "salt")
    assert cache.match(key([1, 2]), None).pages.tolist() == [11, 12]
    assert cache.match(key([1, 2]), "salt").pages.tolist() == [21, 22]
    assert cache.lookup(key([1, 2]), "other").tokens == 0


def test_a_lock_moves_tokens_from_evictable_to_protected() -> None:
    cache = RadixCache(1)
    node = cache.insert(key([1, 2, 3]), pages(11, 12, 13), None).node
    cache.insert(key([1, 5]), pages(11, 15), None)
    cache.lock(node)
    assert (cache.evictable_tokens, cache.protected_tokens) == (1, 3)
    assert cache.evict(10).tolist() == [15]
    cache.unlock(node)
    assert (cache.evictable_tokens, cache.protected_tokens) == (3, 0)


def test_a_split_keeps_the_lock_on_both_halves() -> None:
    cache = RadixCache(1)
    node = cache.insert(key([1, 2, 3]), pages(11, 12, 13), None).node
    cache.lock(node)
    half = cache.match(key([1, 2]), None).node
    cache.lock(half)
    cache.unlock(node)
    assert cache.evict(10).tolist() == [13]
    cache.unlock(half)
    assert sorted(cache.evict(10).tolist()) == [11, 12]


def test_unlocking_too_often_is_an_assertion() -> None:
    cache = RadixCache(1)
    node = cache.insert(key([1]), pages(1), None).node
    with pytest.raises(AssertionError, match="more often than locked"):
        cache.unlock(node)


def test_least_recently_used_goes_first_from_its_end() -> None:
    cache = RadixCache(1)
    cache.insert(key([1, 2, 3]), pages(11, 12, 13), None)
    cache.insert(key([7, 8]), pages(27, 28), None)
    cache.match(key([1, 2, 3]), None)
    assert cache.evict(1).tolist() == [28]
    assert cache.evict(2).tolist() == [27, 13]
    assert cache.lookup(key([1, 2, 3]), None).tokens == 2


def test_a_lookup_does_not_count_as_use() -> None:
    cache = RadixCache(1)
    cache.insert(key([1]), pages(11), None)
    cache.insert(key([2]), pages(12), None)
    assert cache.lookup(key([1]), None).tokens == 1
    assert cache.evict(1).tolist() == [11]


def test_reset_returns_every_page_and_refuses_locked_ones() -> None:
    cache = RadixCache(1)
    node = cache.insert(key([1, 2]), pages(11, 12), None).node
    cache.insert(key([1, 3]), pages(11, 13), "x")
    cache.lock(node)
    with pytest.raises(AssertionError, match="in use"):
        cache.reset()
    cache.unlock(node)
    assert sorted(cache.reset().tolist()) == [11, 11, 12, 13]
    assert cache.evictable_tokens == 0 and cache.lookup(key([1, 2]), None).tokens == 0


def fastest_s(call: Callable[[], object]) -> float:
    """CPU seconds of the fastest of a few calls."""
    times = []
    for _ in range(7):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def test_a_long_prompt_matches_much_faster_than_a_loop_over_its_tokens() -> None:
    cache = RadixCache(1)
    tokens = np.arange(32_768, dtype=np.int32)
    cache.insert(tokens.tobytes(), tokens + 1, None)
    other = tokens.copy()
    other[30_000] = -1
    wanted, known, asked = other.tobytes(), tokens.tolist(), other.tolist()
    assert cache.lookup(wanted, None).tokens == 30_000
    loop_s = fastest_s(lambda: next(i for i, token in enumerate(asked) if token != known[i]))
    assert fastest_s(lambda: cache.lookup(wanted, None)) < loop_s / 4


def test_eviction_cost_does_not_grow_with_the_cache() -> None:
    def cache_of(num_leaves: int) -> RadixCache:
        cache = RadixCache(1)
        for leaf in range(num_leaves):
            cache.insert(key([leaf, 1, 2]), pages(1, 2, 3), None)
        return cache

    small, large = cache_of(1000), cache_of(20_000)
    assert fastest_s(lambda: large.evict(300)) < 5 * fastest_s(lambda: small.evict(300))
