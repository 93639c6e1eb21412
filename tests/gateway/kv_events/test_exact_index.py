"""The exact index against a model of plain sets, whatever order events come in."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EventBatch,
    chain,
    decode,
    encode,
    first_seed,
)
from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.prompt_tokens import PromptTokens

SIZE = 2
LIFE = 1


def pack_tokens(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def prompt(tokens: list[int], extra_key: str | None = None) -> PromptTokens:
    return PromptTokens(pack_tokens(tokens), extra_key)


def matched(index: ExactIndex, tokens: list[int], extra_key: str | None = None, life: int = LIFE) -> int:
    return index.matched(life, prompt(tokens, extra_key).hashes(SIZE), 0.0)


class Model:
    """A worker's cache as a set of token sequences; names blocks by counting, as other makers may."""

    def __init__(self) -> None:
        self.names: dict[tuple[str | None, tuple[int, ...]], int] = {}
        self.next_name = 100

    def store(self, tokens: list[int], extra_key: str | None) -> list[CacheEvent]:
        events: list[CacheEvent] = []
        parent = None
        for end in range(SIZE, len(tokens) + 1, SIZE):
            key = extra_key, tuple(tokens[:end])
            if key not in self.names:
                self.names[key] = self.next_name = self.next_name + 1
                extras: list[list[object] | None] | None = [[extra_key]] if extra_key and parent is None else None
                events.append(BlockStored([self.names[key]], parent, tokens[end - SIZE : end], SIZE, extra_keys=extras))
            parent = self.names[key]
        return events

    def remove_last(self, position: int) -> list[CacheEvent]:
        """A block that nothing follows."""
        leaves = [key for key in self.names if not any(self._follows(other, key) for other in self.names)]
        if not leaves:
            return []
        return [BlockRemoved([self.names.pop(leaves[position % len(leaves)])])]

    def held(self, tokens: list[int], extra_key: str | None) -> int:
        ends = range(SIZE, len(tokens) + 1, SIZE)
        return sum((extra_key, tuple(tokens[:end])) in self.names for end in ends)

    @staticmethod
    def _follows(one: tuple[str | None, tuple[int, ...]], other: tuple[str | None, tuple[int, ...]]) -> bool:
        return one[0] == other[0] and len(one[1]) > len(other[1]) and one[1][: len(other[1])] == other[1]


tokens_of = st.lists(st.integers(0, 2), max_size=12)
keys = st.sampled_from([None, "a", "b"])
steps_of = st.lists(
    st.one_of(
        st.tuples(st.just("store"), tokens_of, keys),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("clear")),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(steps=steps_of, asked=st.lists(st.tuples(tokens_of, keys), min_size=1, max_size=4))
def test_it_holds_what_a_worker_says(
    steps: list[tuple[object, ...]], asked: list[tuple[list[int], str | None]]
) -> None:
    model, index = Model(), ExactIndex(10_000)
    index.begin(LIFE)
    prompts = list(asked)
    for step in steps:
        match step:
            case ("store", list() as tokens, str() | None as key):
                events = model.store(tokens, key)
                prompts.append((tokens, key))
            case ("remove", int() as position):
                events = model.remove_last(position)
            case _:
                model.names.clear()
                events = [AllBlocksCleared()]
        assert index.apply(LIFE, decode(encode(EventBatch(0.0, events))).events)
    for tokens, key in prompts:
        assert matched(index, tokens, key) == model.held(tokens, key)
    assert len(index) == index.size(LIFE) == len(model.names)


@settings(max_examples=40)
@given(steps=steps_of, lost=st.sets(st.integers(0, 24)), asked=st.lists(tokens_of, min_size=1, max_size=4))
def test_lost_batches_never_break_it_and_a_snapshot_mends_it(
    steps: list[tuple[object, ...]], lost: set[int], asked: list[list[int]]
) -> None:
    model, index = Model(), ExactIndex(10_000)
    index.begin(LIFE)
    for number, step in enumerate(steps):
        match step:
            case ("store", list() as tokens, _):
                events = model.store(tokens, None)
            case ("remove", int() as position):
                events = model.remove_last(position)
            case _:
                model.names.clear()
                events = [AllBlocksCleared()]
        if number not in lost:
            index.apply(LIFE, events)
    fresh: list[CacheEvent] = [AllBlocksCleared()]
    again = Model()
    for _, tokens_held in sorted(model.names, key=lambda key: len(key[1])):
        fresh += again.store(list(tokens_held), None)
    index.apply(LIFE, fresh)
    for tokens in asked:
        assert matched(index, tokens) == model.held(tokens, None)
    assert len(index) == len(model.names)


def test_batches_of_maps_are_read_like_arrays() -> None:
    stored = {
        "type": "BlockStored",
        "block_hashes": [b"x", b"y"],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    payload = msgspec.msgpack.encode({"ts": 1.0, "events": [stored, {"type": "BlockRemoved", "block_hashes": [b"y"]}]})
    index = ExactIndex(100)
    index.begin(LIFE)
    index.apply(LIFE, decode(payload).events)
    assert matched(index, [1, 2, 3, 4]) == 1


def test_old_sglang_events_without_optional_fields_are_read() -> None:
    payload = msgspec.msgpack.encode([1.0, [["BlockStored", [-5], None, [1, 2], 2, None]]])
    index = ExactIndex(100)
    index.begin(LIFE)
    index.apply(LIFE, decode(payload).events)
    assert matched(index, [1, 2, 3]) == 1


def test_other_media_and_later_groups_do_not_count() -> None:
    index = ExactIndex(100)
    index.begin(LIFE)
    index.apply(LIFE, [BlockStored([1], None, [1, 2], 2, medium="CPU")])
    index.apply(LIFE, [BlockStored([2], None, [1, 2], 2, group_idx=1)])
    assert matched(index, [1, 2]) == 0
    index.apply(LIFE, [BlockStored([3], None, [1, 2], 2, medium="GPU"), BlockRemoved([3], medium="CPU")])
    assert matched(index, [1, 2]) == 1


def test_blocks_after_an_unknown_one_are_left_out() -> None:
    index = ExactIndex(100)
    index.begin(LIFE)
    index.apply(LIFE, [BlockStored([2], 1, [1, 2], 2)])
    assert matched(index, [1, 2]) == len(index) == 0


def test_an_adapter_has_blocks_of_its_own() -> None:
    index = ExactIndex(100)
    index.begin(LIFE)
    index.apply(LIFE, [BlockStored([1], None, [1, 2], 2, lora_name="french")])
    assert matched(index, [1, 2]) == 0 and matched(index, [1, 2], "french") == 1


def test_the_fullest_life_goes_when_there_is_no_room() -> None:
    index = ExactIndex(3)
    index.begin(1)
    index.begin(2)
    assert index.apply(1, [BlockStored([1, 2], None, [1, 2, 3, 4], 2)])
    assert index.apply(2, [BlockStored([1], None, [1, 2], 2)])
    assert not index.apply(1, [BlockStored([3], 2, [5, 6], 2)])
    assert set(index.lives) == {2} and len(index) == 1 and index.dropped == 1
    assert index.block_size(1) is None


def test_promises_count_and_end_in_time() -> None:
    index = ExactIndex(100)
    index.begin(LIFE, SIZE)
    hashes = chain(pack_tokens([1, 2, 3, 4]), SIZE, first_seed(None))
    index.promise(LIFE, hashes, until_s=5.0)
    assert index.matched(LIFE, hashes, 1.0) == 2
    index.withdraw(LIFE, hashes[1:])
    assert index.matched(LIFE, hashes, 1.0) == 1
    assert index.matched(LIFE, hashes, 5.0) == 0
    index.apply(LIFE, [BlockStored([9], None, [1, 2], 2)])
    assert index.matched(LIFE, hashes, 9.0) == 1


def test_other_lives_are_forgotten_at_once() -> None:
    index = ExactIndex(100)
    for life in (1, 2, 3):
        index.begin(life)
        index.apply(life, [BlockStored([1], None, [1, 2], 2)])
    index.retain({2})
    assert set(index.lives) == {2} and len(index) == 1
    index.begin(2)
    assert len(index) == 0 and index.block_sizes() == set()


@pytest.mark.parametrize(("shared_tokens", "found"), [(0, 5), (6, 5), (7, 2)])
def test_who_shares_little_does_not_wait_for_what_is_being_computed(shared_tokens: int, found: int) -> None:
    index = ExactIndex(100)
    index.begin(LIFE, SIZE, shared_tokens)
    tokens = list(range(10))
    hashes = prompt(tokens).hashes(SIZE)
    index.apply(LIFE, [BlockStored([1, 2], None, tokens[:4], 2)])
    index.promise(LIFE, hashes, until_s=10.0)
    assert index.matched(LIFE, hashes, 1.0) == found
    index.apply(LIFE, [BlockStored([3, 4, 5], 2, tokens[4:], 2)])
    assert index.matched(LIFE, hashes, 1.0) == 5
