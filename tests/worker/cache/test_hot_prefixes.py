"""Hot prefixes: those asked for again, within a budget, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.cache.hot_prefixes import hot_prefixes
from worker.cache.radix import RadixCache

prompts = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), max_size=12)


def key(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


class Use:
    """A cache as a scheduler uses it: what is cached counts as a hit, then the whole prompt is stored."""

    def __init__(self, page_size: int = 1) -> None:
        self.cache = RadixCache(page_size)
        self._pages = 0

    def ask(self, tokens: Sequence[int], namespace: str | None = None) -> None:
        self.cache.count_hit(self.cache.match(key(tokens), namespace).node)
        whole = len(tokens) // self.cache.page_size
        pages = np.arange(self._pages, self._pages + whole, dtype=np.int32)
        self._pages += whole
        self.cache.insert(key(tokens[: whole * self.cache.page_size]), pages, namespace)

    def hot(self, max_tokens: int) -> list[tuple[list[int], int]]:
        return [(np.frombuffer(ids, np.int32).tolist(), hits) for ids, hits in hot_prefixes(self.cache, max_tokens)]


def test_the_shared_beginning_is_told_and_not_what_only_one_asked_for() -> None:
    use = Use()
    for own in range(3):
        use.ask([1, 2, 3, 10 + own])
    use.ask([7, 8])
    assert use.hot(100) == [([1, 2, 3], 2)]


def test_the_hottest_comes_first_and_the_budget_cuts_the_rest() -> None:
    use = Use()
    for own in range(5):
        use.ask([1, 1, 1, 1, 20 + own])
    for own in range(3):
        use.ask([2, 2, 2, 2, 20 + own])
    assert use.hot(8) == [([1, 1, 1, 1], 4), ([2, 2, 2, 2], 2)]
    assert use.hot(6) == [([1, 1, 1, 1], 4), ([2, 2], 2)]
    assert use.hot(0) == []


def test_a_branch_tells_its_trunk_once() -> None:
    use = Use()
    for end in (3, 4, 3, 4, 3):
        use.ask([1, 2, end])
    assert use.hot(4) == [([1, 2, 3], 2), ([1, 2, 4], 1)]


def test_prefixes_of_a_namespace_are_not_told() -> None:
    use = Use()
    for _ in range(3):
        use.ask([1, 2], "salt")
    assert use.hot(100) == []


def test_only_whole_pages() -> None:
    use = Use(page_size=4)
    for own in range(3):
        use.ask([*range(1, 9), 20 + own, 0, 0, 0])
    assert use.hot(7) == [([1, 2, 3, 4], 2)]


@settings(max_examples=40)
@given(prompts, st.integers(0, 20))
def test_what_is_told_is_cached_asked_for_and_within_the_budget(asked: list[list[int]], max_tokens: int) -> None:
    use = Use()
    for prompt in asked:
        use.ask(prompt)
    told = use.hot(max_tokens)
    starts = {tuple(tokens[:length]) for tokens, _ in told for length in range(1, len(tokens) + 1)}
    assert len(starts) <= max_tokens
    assert [hits for _, hits in told] == sorted((hits for _, hits in told), reverse=True)
    for tokens, _ in told:
        assert use.cache.lookup(key(tokens), None).tokens == len(tokens)
        assert sum(prompt[: len(tokens)] == tokens for prompt in asked) >= 2
