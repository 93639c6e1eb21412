"""lpm: longest cached prefix first, in-batch grouping, the fallback above 128 waiting, ageing."""

from __future__ import annotations

import numpy as np

from tests.helpers.builders import cache_with, make_request, queue_of
from worker.cache.prefix import PrefixCache
from worker.cache.radix import RadixCache
from worker.scheduler.policies.longest_prefix import LongestPrefixMatch
from worker.scheduler.request import Request


def order(cache: PrefixCache, *requests: Request, starting: tuple[Request, ...] = ()) -> list[str]:
    (lane,) = queue_of(*requests).lanes()
    return [request.rid for request in LongestPrefixMatch(cache).order(lane, starting)]


def cold(rid: str, first: int, namespace: str | None = None, shared: int = 32) -> Request:
    """A prompt of `shared` tokens that start with `first`, then one of its own."""
    return make_request([first] * shared + [ord(rid)], rid, namespace=namespace)


def test_lpm_takes_the_longest_match_first_and_keeps_order_among_equals() -> None:
    cache = cache_with([1, 2, 3, 4])
    requests = [
        make_request([9], "none"),
        make_request([1, 2, 9], "two"),
        make_request([1, 2, 3, 9], "three"),
        make_request([1, 2, 8], "two again"),
    ]
    assert order(cache, *requests) == ["three", "two", "two again", "none"]


def test_of_cold_requests_that_start_alike_one_goes_first() -> None:
    assert order(cache_with(), cold("a", 1), cold("b", 1), cold("c", 2)) == ["a", "c", "b"]


def test_31_shared_tokens_are_not_alike_enough() -> None:
    assert order(cache_with(), cold("a", 1, shared=31), cold("b", 1, shared=31)) == ["a", "b"]


def test_namespaces_are_not_alike() -> None:
    assert order(cache_with(), cold("a", 1), cold("b", 1, "salt"), cold("c", 1, "salt")) == ["a", "b", "c"]


def test_a_prompt_being_computed_makes_its_like_wait() -> None:
    assert order(cache_with(), cold("b", 1), cold("c", 2), starting=(cold("a", 1),)) == ["c", "b"]


def test_a_prompt_half_computed_makes_its_like_wait_for_the_rest() -> None:
    leader = make_request([1] * 200, "leader")
    cache = cache_with([1] * 80)
    like, unlike = make_request([1] * 190 + [5], "like"), make_request([1] * 90 + [2] * 100, "unlike")
    assert order(cache, like, unlike, starting=(leader,)) == ["unlike", "like"]
    assert order(cache, like, unlike) == ["like", "unlike"]


def test_warm_requests_that_start_alike_do_not_wait() -> None:
    cache = cache_with([1] * 33)
    a, b = make_request([1] * 33 + [5], "a"), make_request([1] * 33 + [6], "b")
    assert order(cache, cold("x", 9), a, b) == ["a", "b", "x"]


def test_with_larger_pages_alike_means_whole_pages() -> None:
    shared40 = [make_request([1] * 40 + [own] * 30, str(own)) for own in (1, 2)]
    shared48 = [make_request([2] * 48 + [own] * 30, str(own)) for own in (3, 4, 5)]
    assert order(RadixCache(48), *shared40, *shared48) == ["1", "2", "3", "4", "5"]
    assert order(RadixCache(48), *shared48[:2], *shared40) == ["3", "1", "2", "4"]


def test_above_128_waiting_it_is_fcfs() -> None:
    cache = cache_with([7, 7, 7])
    waiting = [make_request([1], f"r{n}") for n in range(127)]
    warm = make_request([7, 7, 7, 1], "warm")
    assert order(cache, *waiting, warm)[0] == "warm"
    assert order(cache, *waiting, make_request([1], "one more"), warm)[0] == "r0"


def test_above_128_waiting_cold_requests_that_start_alike_still_wait() -> None:
    waiting = [make_request([n % 2] * 32 + [n], f"r{n}") for n in range(130)]
    assert order(cache_with(), *waiting)[:3] == ["r0", "r1", "r2"]
    assert order(cache_with(), cold("x", 7), *waiting, starting=(cold("a", 0),))[:3] == ["x", "r1", "r0"]


def test_a_retracted_request_goes_first() -> None:
    retracted = make_request([9], "retracted")
    retracted.refill(retracted.prompt_key)
    queue = queue_of(make_request([1, 2, 3], "warm"))
    queue.push_front(retracted)
    ranked = LongestPrefixMatch(cache_with([1, 2])).order(queue.lanes()[0], ())
    assert [request.rid for request in ranked] == ["retracted", "warm"]


def passed_by(policy: LongestPrefixMatch, ahead: int) -> int:
    """How many warm later arrivals go before a cold request that had `ahead` others before it."""
    unlucky = make_request([9], "cold")
    queue = queue_of(*(make_request([8], f"ahead{n}") for n in range(ahead)), unlucky)
    passed = 0
    while True:
        queue.append(make_request([1, 2, 3], f"warm{passed}"))
        first = next(iter(policy.order(queue.lanes()[0], ())))
        queue.remove(first)
        if first is unlucky:
            return passed
        passed += first.rid.startswith("warm")


def test_a_cold_request_is_passed_64_times_at_most() -> None:
    assert passed_by(LongestPrefixMatch(cache_with([1, 2])), ahead=0) == 64
    assert passed_by(LongestPrefixMatch(cache_with([1, 2])), ahead=3) == 64


def test_an_overdue_follower_goes_at_its_turn() -> None:
    leader, follower = cold("a", 1), cold("b", 1)
    queue = queue_of(follower)
    for number in range(64):
        other = make_request([5], f"r{number}")
        queue.append(other)
        queue.remove(other)
    queue.append(make_request([6], "new"))
    ranked = LongestPrefixMatch(cache_with()).order(queue.lanes()[0], (leader,))
    assert [request.rid for request in ranked] == ["b", "new"]


def test_a_changed_cache_is_matched_again() -> None:
    cache = cache_with([1, 2])
    policy = LongestPrefixMatch(cache)
    (lane,) = queue_of(make_request([1, 2, 9], "a"), make_request([5, 6, 7, 8], "b")).lanes()
    assert [r.rid for r in policy.order(lane, ())] == ["a", "b"]
    cache.insert(np.array([5, 6, 7], np.int32).tobytes(), np.array([4, 5, 6], np.int32), None)
    assert [r.rid for r in policy.order(lane, ())] == ["b", "a"]
