"""What the recorder tells is what the cache holds, whatever came and went."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, chain, first_seed
from worker.cache.pool import KvPool
from worker.cache.radix import RadixCache
from worker.ipc.messages import CacheChanges
from worker.kv_events.mirror import Mirror
from worker.kv_events.recorder import RecordedCache, block_size_of
from worker.token_ids import pack_tokens

NUM_PAGES = 48


class Follower:
    """Blocks by what the events say, under the rules of a subscriber: a block needs its parent."""

    def __init__(self) -> None:
        self.blocks: set[int | bytes] = set()

    def apply(self, events: list[CacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    assert event.parent_block_hash is None or event.parent_block_hash in self.blocks
                    assert len(event.token_ids) == len(event.block_hashes) * event.block_size
                    assert self.blocks.isdisjoint(event.block_hashes)
                    self.blocks.update(event.block_hashes)
                case BlockRemoved():
                    assert self.blocks.issuperset(event.block_hashes)
                    self.blocks.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.blocks.clear()


class Cache:
    """A small pool whose prefix cache is recorded, mirrored and followed."""

    def __init__(self, page_size: int, block_size: int) -> None:
        self.block_size = block_size
        self.batches: list[list[CacheEvent]] = []
        self.mirror = Mirror(block_size)
        self.follower = Follower()
        self.recorded = RecordedCache(RadixCache(page_size), NUM_PAGES, block_size, self._take)
        self.pool = KvPool(NUM_PAGES, self.recorded)

    def _take(self, message: CacheChanges) -> None:
        self.batches.append(self.mirror.apply(message.changes))
        self.follower.apply(self.batches[-1])

    def store(self, tokens: list[int], namespace: str | None) -> None:
        """What a request does that ends: as far as there is room."""
        num_pages = min(len(tokens) // self.pool.page_size, self.pool.available_tokens // self.pool.page_size)
        pages = self.pool.alloc(num_pages)
        key = pack_tokens(tokens[: num_pages * self.pool.page_size])
        inserted = self.recorded.insert(key, pages, namespace)
        self.pool.free(pages[: len(inserted.cached_pages)])

    def held_blocks(self, tokens: list[int], namespace: str | None) -> int:
        """Of a prompt, by the cache itself."""
        return self.recorded.lookup(pack_tokens(tokens), namespace).tokens // self.block_size

    def told_blocks(self, tokens: list[int], namespace: str | None) -> int:
        """Of a prompt, by the events."""
        hashes = chain(pack_tokens(tokens), self.block_size, first_seed(namespace))
        return next((i for i, block in enumerate(hashes) if block not in self.follower.blocks), len(hashes))


tokens_of = st.lists(st.integers(0, 2), max_size=40)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("store"), tokens_of, st.sampled_from([None, "a"])),
        st.tuples(st.just("evict"), st.integers(1, 12)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("flush")),
    ),
    max_size=40,
)


@pytest.mark.parametrize(("page_size", "block_size"), [(1, 1), (1, 4), (2, 4), (4, 4)])
@given(steps=operations, prompts=st.lists(tokens_of, min_size=1, max_size=5))
def test_events_tell_what_the_cache_holds(
    page_size: int, block_size: int, steps: list[tuple[object, ...]], prompts: list[list[int]]
) -> None:
    cache = Cache(page_size, block_size)
    asked = [(tokens, namespace) for tokens in prompts for namespace in (None, "a")]
    for step in steps:
        match step:
            case ("store", list() as tokens, str() | None as namespace):
                cache.store(tokens, namespace)
                asked.append((tokens, namespace))
            case ("evict", int() as count):
                cache.pool.free(cache.recorded.evict(count))
            case ("reset",):
                cache.pool.flush()
            case _:
                cache.recorded.flush()
    cache.recorded.flush()
    for tokens, namespace in asked:
        assert cache.told_blocks(tokens, namespace) == cache.held_blocks(tokens, namespace)

    late = Follower()
    for events in cache.mirror.snapshot(3):
        late.apply(events)
    assert late.blocks == cache.follower.blocks


def test_a_step_sends_one_message_and_a_quiet_one_none() -> None:
    cache = Cache(4, 4)
    cache.store([1] * 8, None)
    cache.store([2] * 8, None)
    cache.recorded.flush()
    cache.recorded.flush()
    assert [len(batch) for batch in cache.batches] == [2]


def test_a_namespace_stands_at_the_start_of_its_sequences_only() -> None:
    cache = Cache(4, 4)
    cache.store([1] * 8, "tenant")
    cache.store([1] * 12, "tenant")
    cache.recorded.flush()
    first, second = cache.batches[0]
    assert isinstance(first, BlockStored) and first.extra_keys == [["tenant"], None]
    assert isinstance(second, BlockStored) and second.extra_keys is None
    assert second.parent_block_hash == first.block_hashes[-1] and second.token_ids == [1] * 4


def test_blocks_are_pages_or_multiples_of_small_ones() -> None:
    assert [block_size_of(size) for size in (1, 2, 5, 16, 64)] == [16, 16, 20, 16, 64]
    assert block_size_of(16, 32) == 32
    with pytest.raises(UserError, match="block_size 24 is no multiple of the page size 16"):
        block_size_of(16, 24)


def test_a_large_cache_is_followed_through_churn() -> None:
    rng = random.Random(1)
    cache = Cache(1, 4)
    base = [rng.randrange(9) for _ in range(16)]
    for _ in range(300):
        tokens = base[: rng.randrange(17)] + [rng.randrange(9) for _ in range(rng.randrange(20))]
        cache.store(tokens, None)
        cache.recorded.flush()
        assert cache.told_blocks(tokens, None) == cache.held_blocks(tokens, None)
    assert np.count_nonzero(cache.recorded._block_at) == len(cache.follower.blocks) == len(cache.mirror)
