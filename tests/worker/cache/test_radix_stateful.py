"""The radix tree against a dictionary of prefixes, under any mix of operations."""

from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.naive_cache import NaivePrefixCache
from worker.cache.prefix import CacheNode, PrefixLookup
from worker.cache.radix import RadixCache, RadixNode

tokens_of = st.lists(st.integers(0, 1), max_size=24).map(tuple)
namespaces = st.sampled_from([None, "a"])


def key(tokens: tuple[int, ...]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


class RadixAgainstNaive(RuleBasedStateMachine):
    """Both caches get the same calls; a page id is used once only, so a wrong page shows."""

    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def start(self, page_size: int) -> None:
        self.cache = RadixCache(page_size)
        self.naive = NaivePrefixCache(page_size)
        self.next_page = 1
        self.lookups: dict[tuple[tuple[int, ...], str | None], PrefixLookup] = {}
        self.locks: list[tuple[CacheNode, tuple[int, ...], str | None]] = []

    @rule(tokens=tokens_of, namespace=namespaces)
    def insert(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        count = len(tokens) // self.cache.page_size
        whole = tokens[: count * self.cache.page_size]
        ids = list(range(self.next_page, self.next_page + count))
        self.next_page += count
        known = [entry.page for entry in self.naive.cached(whole, namespace)]
        inserted = self.cache.insert(key(whole), np.array(ids, np.int32), namespace)
        assert inserted.cached_pages.tolist() == known
        assert inserted.num_pages == count
        assert self.naive.insert(whole, ids, namespace) == len(known)

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), more=tokens_of, lock=st.booleans())
    def extend(self, data: st.DataObject, more: tuple[int, ...], lock: bool) -> None:
        """Insert below a locked node, as a request does that goes on."""
        index = data.draw(st.integers(0, len(self.locks) - 1))
        node, known, namespace = self.locks[index]
        size = self.cache.page_size
        whole = known + more[: len(more) // size * size]
        num_known, count = len(known) // size, len(whole) // size
        held = [entry.page for entry in self.naive.cached(whole, namespace)]
        ids = held[:num_known] + list(range(self.next_page, self.next_page + count - num_known))
        self.next_page += count
        inserted = self.cache.insert(key(whole), np.array(ids, np.int32), namespace, 0, (node, num_known))
        assert inserted.cached_pages.tolist() == held[num_known:]
        assert self.naive.insert(whole, ids, namespace) == len(held)
        if lock or inserted.node is node:  # which has grown then, and the lock with it
            self.cache.lock(inserted.node)
            self.cache.unlock(node)
            self.naive.lock(whole, namespace, 1)
            self.naive.lock(known, namespace, -1)
            self.locks[index] = (inserted.node, whole, namespace)

    @rule(tokens=tokens_of, namespace=namespaces, lock=st.booleans())
    def match(self, tokens: tuple[int, ...], namespace: str | None, lock: bool) -> None:
        match = self.cache.match(key(tokens), namespace)
        assert match.pages.tolist() == self.naive.use(tokens, namespace)
        if lock:
            found = tokens[: len(match.pages) * self.cache.page_size]
            self.cache.lock(match.node)
            self.naive.lock(found, namespace, 1)
            self.locks.append((match.node, found, namespace))

    @rule(tokens=tokens_of, namespace=namespaces)
    def lookup(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        self.look_up(tokens, namespace)

    @rule()
    def lookup_again(self) -> None:
        """Answers that were true once are corrected, whatever has happened since."""
        for tokens, namespace in list(self.lookups):
            self.look_up(tokens, namespace)

    def look_up(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        found = self.cache.lookup(key(tokens), namespace, self.lookups.get((tokens, namespace)))
        self.lookups[tokens, namespace] = found
        assert found.tokens == len(self.naive.cached(tokens, namespace)) * self.cache.page_size
        whole = sum(len(node.pages) for node in cast(list[RadixNode], self.cache.path(found)))
        assert whole * self.cache.page_size >= found.tokens

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, tokens, namespace = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.cache.unlock(node)
        self.naive.lock(tokens, namespace, -1)

    @rule(count=st.integers(0, 9))
    def evict(self, count: int) -> None:
        evictable = self.naive.count(locked=False) // self.cache.page_size
        evicted = self.cache.evict(count).tolist()
        assert len(evicted) == min(count, evictable)
        while evicted:  # in an order that the oracle accepts, if there is one
            leaves = {self.naive.entries[prefix].page: self.naive.entries[prefix] for prefix in self.naive.leaves()}
            page = min(leaves.keys() & set(evicted), key=lambda page: leaves[page].last_use)
            self.naive.evict(page)
            evicted.remove(page)

    @precondition(lambda self: not self.locks)
    @rule()
    def reset(self) -> None:
        assert sorted(self.cache.reset().tolist()) == sorted(e.page for e in self.naive.entries.values())
        self.naive.entries.clear()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert self.cache.evictable_tokens == self.naive.count(locked=False)
        assert self.cache.protected_tokens == self.naive.count(locked=True)
        held = sorted(page for run in self.cache.pages() for page in run.tolist())
        assert held == sorted(entry.page for entry in self.naive.entries.values())


RadixAgainstNaive.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRadixAgainstNaive = RadixAgainstNaive.TestCase
