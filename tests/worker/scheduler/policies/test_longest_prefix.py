"""lpm: longest cached prefix first, the fallback above 128 waiting, ageing."""

from __future__ import annotations

import numpy as np

from tests.helpers.builders import cache_with, make_request, queue_of
from worker.cache.prefix import PrefixCache
from worker.scheduler.policies.longest_prefix import LongestPrefixMatch
from worker.scheduler.request import Request


def order(cache: PrefixCache, *requests: Request) -> list[str]:
    (lane,) = queue_of(*requests).lanes()
    return [request.rid for request in LongestPrefixMatch(cache).order(lane)]


def test_lpm_takes_the_longest_match_first_and_keeps_order_among_equals() -> None:
    cache = cache_with([1, 2, 3, 4])
    requests = [
        make_request([9], "none"),
        make_request([1, 2, 9], "two"),
        make_request([1, 2, 3, 9], "three"),
        make_request([1, 2, 8], "two again"),
    ]
    assert order(cache, *requests) == ["three", "two", "two again", "none"]


def test_above_128_waiting_it_is_fcfs() -> None:
    cache = cache_with([7, 7, 7])
    waiting = [make_request([1], f"r{n}") for n in range(127)]
    warm = make_request([7, 7, 7, 1], "warm")
    assert order(cache, *waiting, warm)[0] == "warm"
    assert order(cache, *waiting, make_request([1], "one more"), warm)[0] == "r0"


def test_a_retracted_request_goes_first() -> None:
    retracted = make_request([9], "retracted")
    retracted.refill(retracted.prompt_key)
    queue = queue_of(make_request([1, 2, 3], "warm"))
    queue.push_front(retracted)
    ranked = LongestPrefixMatch(cache_with([1, 2])).order(queue.lanes()[0])
    assert [request.rid for request in ranked] == ["retracted", "warm"]


def passed_by(policy: LongestPrefixMatch, ahead: int) -> int:
    """How many warm later arrivals go before a cold request that had `ahead` others before it."""
    unlucky = make_request([9], "cold")
    queue = queue_of(*(make_request([8], f"ahead{n}") for n in range(ahead)), unlucky)
    passed = 0
    while True:
        queue.append(make_request([1, 2, 3], f"warm{passed}"))
        first = next(iter(policy.order(queue.lanes()[0])))
        queue.remove(first)
        if first is unlucky:
            return passed
        passed += first.rid.startswith("warm")


def test_a_cold_request_is_passed_64_times_at_most() -> None:
    assert passed_by(LongestPrefixMatch(cache_with([1, 2])), ahead=0) == 64
    assert passed_by(LongestPrefixMatch(cache_with([1, 2])), ahead=3) == 64


def test_a_changed_cache_is_matched_again() -> None:
    cache = cache_with([1, 2])
    policy = LongestPrefixMatch(cache)
    (lane,) = queue_of(make_request([1, 2, 9], "a"), make_request([5, 6, 7, 8], "b")).lanes()
    assert [r.rid for r in policy.order(lane)] == ["a", "b"]
    cache.insert(np.array([5, 6, 7], np.int32).tobytes(), np.array([4, 5, 6], np.int32), None)
    assert [r.rid for r in policy.order(lane)] == ["b", "a"]
