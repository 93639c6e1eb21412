"""Which cached prefix goes first under each eviction policy."""

from __future__ import annotations

import numpy as np
import pytest

from worker.cache.eviction import EvictionPolicyName
from worker.cache.radix import RadixCache


class Prefixes:
    """Single-token prefixes in a cache, named by their token."""

    def __init__(self, policy: EvictionPolicyName) -> None:
        self.cache = RadixCache(1, policy)

    def store(self, token: int, priority: int = 0) -> None:
        self.cache.insert(_key(token), np.array([token], np.int32), None, priority)

    def hit(self, token: int) -> None:
        """A request starts on it."""
        self.cache.count_hit(self.cache.match(_key(token), None).node)

    def evict_all(self) -> list[int]:
        gone: list[int] = []
        while self.cache.evictable_tokens:
            gone += self.cache.evict(1).tolist()
        return gone


def _key(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", [3, 1, 2, 4]),  # by last use
        ("lfu", [4, 3, 1, 2]),  # none, 1 hit, 2 hits, 4 hits
        ("slru", [3, 4, 1, 2]),  # fewer than 2 hits by last use, then the proven ones by last use
        ("priority", [3, 2, 4, 1]),  # -5, 0, 0, 9
    ],
)
def test_order(policy: EvictionPolicyName, expected: list[int]) -> None:
    prefixes = Prefixes(policy)
    for token, priority in ((1, 9), (2, 0), (3, -5), (4, 0)):
        prefixes.store(token, priority)
    for token in (2, 2, 2, 3, 1, 1, 2):
        prefixes.hit(token)
    prefixes.store(4)
    assert prefixes.evict_all() == expected


def test_a_prefix_keeps_the_highest_priority_that_stored_it() -> None:
    prefixes = Prefixes("priority")
    prefixes.store(1, -3)
    prefixes.store(2, 0)
    prefixes.store(1, 5)
    prefixes.store(1, -9)
    assert prefixes.evict_all() == [2, 1]


def test_a_shared_trunk_is_worth_as_much_as_its_best_branch() -> None:
    cache = RadixCache(1, "priority")
    cache.insert(_key(1, 2, 3), np.array([1, 2, 3], np.int32), None, 0)
    cache.insert(_key(9), np.array([9], np.int32), None, 4)
    cache.insert(_key(1, 2, 4), np.array([1, 2, 5], np.int32), None, 7)  # splits after 1, 2
    assert cache.evict(1).tolist() == [3]
    assert cache.evict(1).tolist() == [9]


def test_a_split_keeps_the_hits_of_both_parts() -> None:
    cache = RadixCache(1, "lfu")
    cache.insert(_key(1, 2), np.array([1, 2], np.int32), None)
    for _ in range(3):
        cache.count_hit(cache.match(_key(1, 2), None).node)
    cache.insert(_key(7), np.array([7], np.int32), None)
    cache.count_hit(cache.match(_key(7), None).node)
    cache.match(_key(1), None)
    assert cache.evict(3).tolist() == [7, 2, 1]
