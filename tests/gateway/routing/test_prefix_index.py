"""The prefix index against a naive model, its memory, and what must never be found."""

from __future__ import annotations

import math
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.registry import Registry
from gateway.routing.prefix_index import BLOCK_BYTES, PrefixIndex, chain

LIVES = (1, 2, 3)
letters = st.lists(st.integers(0, 2), max_size=6)  # a small alphabet, so that prefixes meet


def text_of(symbols: list[int]) -> bytes:
    """One block per symbol."""
    return b"".join(bytes([symbol]) * BLOCK_BYTES for symbol in symbols)


@settings(deadline=None)
@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_chains_agree_exactly_on_shared_whole_blocks(a: bytes, b: bytes) -> None:
    shared = 0
    while (shared + 1) * BLOCK_BYTES <= min(len(a), len(b)) and (
        a[: (shared + 1) * BLOCK_BYTES] == b[: (shared + 1) * BLOCK_BYTES]
    ):
        shared += 1
    chain_a, chain_b = chain(a), chain(b)
    assert len(chain_a) == len(a) // BLOCK_BYTES
    assert chain_a[:shared] == chain_b[:shared]
    assert not set(chain_a[shared:]) & set(chain_b[shared:])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LIVES), letters), max_size=30), letters)
def test_matches_like_a_set_of_prefixes(inserts: list[tuple[int, list[int]]], asked: list[int]) -> None:
    index = PrefixIndex(2**20)
    held: dict[int, set[tuple[int, ...]]] = {life: set() for life in LIVES}
    for now_s, (life, symbols) in enumerate(inserts):
        index.insert(life, chain(text_of(symbols)), now_s)
        held[life] |= {tuple(symbols[: length + 1]) for length in range(len(symbols))}
    for life in LIVES:
        longest = max((n for n in range(1, len(asked) + 1) if tuple(asked[:n]) in held[life]), default=0)
        assert index.matched(life, chain(text_of(asked))) == longest
        assert index.size(life) == len(held[life])
    assert len(index) == sum(map(len, held.values()))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LIVES), letters), max_size=40), st.integers(2, 40), st.integers(1, 6))
def test_bounds_hold_and_what_is_held_is_always_a_prefix(
    inserts: list[tuple[int, list[int]]], max_kib: int, capacity: int
) -> None:
    index = PrefixIndex(max_kib * 1024)
    index.limit(1, capacity)
    chains = []
    for now_s, (life, symbols) in enumerate(inserts):
        hashes = chain(text_of(symbols))
        chains.append((life, hashes))
        index.insert(life, hashes, now_s)
        assert len(index) == sum(index.size(one) for one in LIVES)
        assert index.bytes_used <= max_kib * 1024
        assert index.size(1) <= capacity
        for one, seen in chains:
            held = [index.touched_s(one, block) is not None for block in seen]
            assert held == sorted(held, reverse=True)
            assert index.matched(one, seen) == sum(held)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LIVES), st.integers(0, 400), st.booleans()), max_size=25))
def test_bytes_are_those_of_the_tables(changes: list[tuple[int, int, bool]]) -> None:
    """The sum that is kept equals what a count from scratch finds, whatever was inserted, forgotten or purged."""
    index = PrefixIndex(2**17)
    for now_s, (life, amount, keep) in enumerate(changes):
        hashes = tuple(range(now_s * 1000, now_s * 1000 + amount))
        index.insert(life, hashes, now_s)
        if not keep:
            index.forget(life, hashes[amount // 2 :])
            index.expire(life, now_s - 3)
            index.retain(set(LIVES) - {life % 3 + 1})
        fresh = PrefixIndex(2**30)
        for one in LIVES:
            fresh.insert(one, list(index._tables.get(one, ())), 0.0)
        assert 0.3 * fresh.bytes_used - 4096 <= index.bytes_used <= 2**17
        assert index.bytes_used == sum(index._bytes.values())


def test_least_recently_used_goes_first_and_leaves_before_roots() -> None:
    index = PrefixIndex(2**20)
    index.limit(1, 4)
    old, new = chain(text_of([0, 1])), chain(text_of([1, 1]))
    index.insert(1, old, 0)
    index.insert(1, new, 1)
    index.insert(1, old, 2)
    index.insert(1, chain(text_of([2])), 3)
    assert (index.matched(1, old), index.matched(1, new)) == (2, 1)
    assert index.oldest_s(1) == 1
    index.expire(1, touched_s=1)
    assert (index.matched(1, old), index.matched(1, new)) == (2, 0)


def test_lives_are_purged_at_once() -> None:
    index = PrefixIndex(2**20)
    hashes = chain(text_of([0, 1, 2]))
    for life in LIVES:
        index.insert(life, hashes, 0)
    index.retain({2})
    assert [index.matched(life, hashes) for life in LIVES] == [0, 3, 0]
    assert len(index) == 3


def test_room_shrinks_with_what_is_held() -> None:
    index = PrefixIndex(2**20)
    assert index.look_up(1, ()) == (0, math.inf)
    index.limit(1, 5)
    assert index.look_up(1, ()) == (0, 5)
    index.insert(1, chain(text_of([0, 1, 2])), 0)
    assert index.look_up(1, chain(text_of([0, 1, 1]))) == (2, 2)
    index.limit(1, 2)
    assert (index.look_up(1, ()), index.size(1)) == ((0, 0), 2)
    index.limit(1, None)
    assert index.look_up(1, ())[1] == math.inf


@pytest.mark.parametrize("lives", [1, 4])
def test_memory_stays_under_the_cap_at_every_moment(lives: int) -> None:
    """Also while a table grows, when there are two of it. benchmarks/router_index.py sends a million prompts."""
    cap = 2**20
    tracemalloc.start()
    try:
        index = PrefixIndex(cap)
        for number in range(4_000):
            text = number.to_bytes(4, "big") * 1024  # 4,096 characters that nobody sent before
            index.insert(number % lives, chain(text), float(number))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.3 * cap < held
    assert peak < 1.1 * cap
    assert held == pytest.approx(index.bytes_used, rel=0.25)


def test_memory_goes_back_when_branches_come_and_go() -> None:
    index = PrefixIndex(2**24)
    root = tuple(range(50))
    index.insert(1, root, 0.0)
    before = index.bytes_used
    for turn in range(20):
        branches = [root + tuple(range(1000 * number, 1000 * number + 300)) for number in range(1, 30)]
        for branch in branches:
            index.insert(1, branch, float(turn))
        for branch in branches:
            index.forget(1, branch[50:])
        assert len(index) == 50
        assert index.bytes_used <= before + 32 * 1024  # 8,700 branch blocks take over a megabyte


def test_holders_are_those_who_have_it_now() -> None:
    registry = Registry()
    for name in "abc":
        registry.add(f"http://{name}:80", source="test", name=name)
    a, b, c = registry.snapshot.workers
    index = PrefixIndex(2**20)
    hashes = chain(text_of([0, 1]))
    index.insert(a.life, hashes, 0)
    index.insert(b.life, hashes[:1], 0)
    assert index.holders([a, b, c], hashes[0]) == [a, b]
    assert index.holders([a, b, c], hashes[1]) == [a]


def test_long_prompt_is_looked_up_fast() -> None:
    """A 32k-character prompt in an index of 10^5 blocks; bounded loosely for a busy machine."""
    index = PrefixIndex(2**28)
    for number in range(750):
        index.insert(1, chain(number.to_bytes(4, "big") * 8192), float(number))
    text = (700).to_bytes(4, "big") * 8192
    times = []
    for _ in range(50):
        start = time.perf_counter()
        assert index.matched(1, chain(text)) == 128
        times.append(time.perf_counter() - start)
    assert min(times) < 0.0005
