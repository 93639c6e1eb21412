"""Queue order: fcfs, lpm with in-batch grouping, its fallback and its ageing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.builders import make_request
from worker.cache.no_prefix import NoPrefixCache
from worker.cache.radix import RadixCache
from worker.scheduler.policy import FirstComeFirstServed, LongestPrefixMatch, make_policy
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.request import Request


def cache_with(*prompts: list[int]) -> RadixCache:
    cache = RadixCache(1)
    for prompt in prompts:
        cache.insert(np.array(prompt, np.int32).tobytes(), np.arange(1, len(prompt) + 1, dtype=np.int32), None)
    return cache


def queue_of(*requests: Request) -> WaitingQueue:
    queue = WaitingQueue()
    for request in requests:
        queue.append(request)
    return queue


def order(cache: RadixCache, *requests: Request, starting: tuple[Request, ...] = ()) -> list[str]:
    return [request.rid for request in LongestPrefixMatch(cache).order(queue_of(*requests), starting)]


def cold(rid: str, first: int, namespace: str | None = None, shared: int = 32) -> Request:
    """A prompt of `shared` tokens that start with `first`, then one of its own."""
    return make_request([first] * shared + [ord(rid)], rid, namespace=namespace)


def test_fcfs_is_queue_order() -> None:
    a, b = make_request([1], "a"), make_request([2], "b")
    assert list(FirstComeFirstServed().order(queue_of(a, b), ())) == [a, b]


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
    policy = LongestPrefixMatch(RadixCache(48))
    shared40 = [make_request([1] * 40 + [own] * 30, str(own)) for own in (1, 2)]
    shared48 = [make_request([2] * 48 + [own] * 30, str(own)) for own in (3, 4, 5)]
    ranked = policy.order(queue_of(*shared40, *shared48), ())
    assert [request.rid for request in ranked] == ["1", "2", "3", "4", "5"]
    ranked = policy.order(queue_of(*shared48[:2], *shared40), ())
    assert [request.rid for request in ranked] == ["3", "1", "2", "4"]


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
    retracted.refill()
    assert order(cache_with([1, 2]), make_request([1, 2, 3], "warm"), retracted) == ["retracted", "warm"]


def test_a_cold_request_is_passed_64_times_at_most() -> None:
    cache = cache_with([1, 2])
    policy = LongestPrefixMatch(cache)
    unlucky = make_request([9], "cold", arrival_index=0)
    queue = queue_of(unlucky)
    passed = 0
    while True:
        warm = make_request([1, 2, 3], f"warm{passed}", arrival_index=passed + 1)
        queue.append(warm)
        first = next(iter(policy.order(queue, ())))
        queue.remove(first)
        policy.on_admitted([first], queue)
        if first is unlucky:
            break
        passed += 1
    assert passed == 64


def test_earlier_arrivals_do_not_count_as_passing() -> None:
    policy = LongestPrefixMatch(cache_with())
    late = make_request([1], "late", arrival_index=5)
    policy.on_admitted([make_request([1], arrival_index=4), make_request([1], arrival_index=6)], queue_of(late))
    assert late.overtaken == 1


def test_a_changed_cache_is_matched_again() -> None:
    cache = cache_with([1, 2])
    policy = LongestPrefixMatch(cache)
    queue = queue_of(make_request([1, 2, 9], "a"), make_request([5, 6, 7, 8], "b"))
    assert [r.rid for r in policy.order(queue, ())] == ["a", "b"]
    cache.insert(np.array([5, 6, 7], np.int32).tobytes(), np.array([4, 5, 6], np.int32), None)
    assert [r.rid for r in policy.order(queue, ())] == ["b", "a"]


@pytest.mark.parametrize(("name", "kind"), [("fcfs", FirstComeFirstServed), ("lpm", LongestPrefixMatch)])
def test_policy_by_name(name: str, kind: type) -> None:
    assert type(make_policy(name, RadixCache(1))) is kind  # type: ignore[arg-type]
    assert type(make_policy(name, NoPrefixCache(1))) is FirstComeFirstServed  # type: ignore[arg-type]
