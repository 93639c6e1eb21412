"""dfs-weight: along the tree of cached prefixes, heavier branches first."""

from __future__ import annotations

from tests.helpers.builders import cache_with, make_request, queue_of
from worker.cache.prefix import PrefixCache
from worker.scheduler.policies.dfs_weight import DepthFirstByWeight
from worker.scheduler.request import Request


def order(cache: PrefixCache, *requests: Request) -> list[str]:
    (lane,) = queue_of(*requests).lanes()
    return [request.rid for request in DepthFirstByWeight(cache).order(lane)]


def test_the_branch_with_more_requests_goes_first() -> None:
    cache = cache_with([1, 1], [2, 2])
    requests = [make_request([first] * 2 + [9], rid) for rid, first in (("a", 1), ("b", 2), ("c", 2))]
    assert order(cache, *requests) == ["b", "c", "a"]


def test_requests_below_a_node_weigh_on_it_and_go_before_its_own() -> None:
    cache = cache_with([1, 1, 5, 5], [1, 1, 6, 6], [2, 2])
    trunk = make_request([1, 1, 9], "trunk")
    five = make_request([1, 1, 5, 5, 9], "five")
    sixes = [make_request([1, 1, 6, 6, 9], f"six{n}") for n in range(2)]
    twos = [make_request([2, 2, 9], f"two{n}") for n in range(3)]
    assert order(cache, *twos, trunk, five, *sixes) == ["six0", "six1", "five", "trunk", "two0", "two1", "two2"]


def test_a_prefix_that_ends_further_inside_a_node_is_deeper() -> None:
    cache = cache_with([1, 2, 3, 4, 5])
    requests = [make_request([*range(1, 1 + length), 9], str(length)) for length in (2, 4, 3, 5)]
    assert order(cache, *requests) == ["5", "4", "3", "2"]


def test_uncached_requests_come_last_in_order_of_arrival() -> None:
    cache = cache_with([1, 1])
    requests = [make_request([7], "cold0"), make_request([1, 1, 9], "warm"), make_request([8], "cold1")]
    assert order(cache, *requests) == ["warm", "cold0", "cold1"]


def test_a_retracted_request_goes_first_and_above_128_waiting_it_is_fcfs() -> None:
    cache = cache_with([1, 1])
    retracted = make_request([7], "retracted")
    retracted.refill(retracted.prompt_key)
    warm = make_request([1, 1, 9], "warm")
    cold = [make_request([7], f"r{n}") for n in range(126)]
    assert order(cache, retracted, *cold, warm)[:3] == ["retracted", "warm", "r0"]
    assert order(cache, retracted, *cold, warm, make_request([7], "one more"))[:3] == ["retracted", "r0", "r1"]


def test_a_tree_deeper_than_pythons_stack() -> None:
    depth = 1200
    cache = cache_with(*([1] * n for n in range(1, depth)))
    assert order(cache, make_request([1] * depth, "deep"), make_request([3], "cold")) == ["deep", "cold"]
