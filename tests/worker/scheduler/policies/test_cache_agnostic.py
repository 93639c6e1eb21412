"""fcfs, lof and random: their orders, and that overdue requests go first in each."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.helpers.builders import make_request, queue_of
from worker.scheduler.policies.base import QueuePolicy
from worker.scheduler.policies.cache_agnostic import FirstComeFirstServed, LongestOutputFirst, RandomOrder
from worker.scheduler.request import Request


def order(policy: QueuePolicy, *requests: Request) -> list[str]:
    (lane,) = queue_of(*requests).lanes()
    return [request.rid for request in policy.order(lane)]


def asking(*max_new_tokens: int) -> list[Request]:
    return [make_request([1], f"r{n}", max_new_tokens=asked) for n, asked in enumerate(max_new_tokens)]


def test_fcfs_is_arrival_order() -> None:
    assert order(FirstComeFirstServed(), *asking(5, 9, 7)) == ["r0", "r1", "r2"]


def test_lof_takes_the_longest_output_first_and_keeps_order_among_equals() -> None:
    assert order(LongestOutputFirst(), *asking(5, 9, 7, 9)) == ["r1", "r3", "r2", "r0"]


def test_random_is_a_new_order_each_time_the_same_for_a_seed() -> None:
    requests = asking(*range(20))
    policies = [RandomOrder(random.Random(seed)) for seed in (1, 1, 2)]
    first, again, other = ([order(policy, *requests) for _ in range(3)] for policy in policies)
    assert first == again != other
    assert len({tuple(rids) for rids in first}) == 3
    assert all(sorted(rids) == sorted(r.rid for r in requests) for rids in first)


def test_random_is_fair() -> None:
    policy = RandomOrder(random.Random(0))
    firsts = Counter(order(policy, *asking(1, 2, 3, 4))[0] for _ in range(2000))
    assert all(400 < count < 600 for count in firsts.values())


@pytest.mark.parametrize("policy", [LongestOutputFirst(), RandomOrder(random.Random(0))])
def test_who_was_passed_64_times_goes_first(policy: QueuePolicy) -> None:
    unlucky = make_request([1], "unlucky", max_new_tokens=1)
    queue = queue_of(unlucky)
    passed = 0
    while True:
        for _ in range(3):
            queue.append(make_request([1], f"r{passed}-{random.random()}", max_new_tokens=9))
        first = next(iter(policy.order(queue.lanes()[0])))
        queue.remove(first)
        if first is unlucky:
            break
        passed += 1
    assert passed <= 64
    assert passed == 64 or isinstance(policy, RandomOrder)


@pytest.mark.parametrize("policy", [FirstComeFirstServed(), LongestOutputFirst(), RandomOrder(random.Random(0))])
def test_a_retracted_request_goes_first(policy: QueuePolicy) -> None:
    queue = queue_of(*asking(5, 6, 7, 8, 9))
    retracted = make_request([1], "retracted", max_new_tokens=1)
    retracted.refill(retracted.prompt_key)
    queue.push_front(retracted)
    assert next(iter(policy.order(queue.lanes()[0]))) is retracted
