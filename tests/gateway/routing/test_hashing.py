"""Policies that hash keys or beginnings of prompts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.hashing import LOAD_FACTOR, PREFIX_BYTES, ConsistentHashing, PrefixHash
from gateway.routing.policy import Policy, RouteRequest
from gateway.routing.router import Router


def fleet_of(count: int) -> Registry:
    registry = Registry()
    for number in range(count):
        registry.add(url(number), source="test", name=str(number), identity=Identity(model="m"))
        registry.ready(url(number))
    return registry


def url(number: int) -> str:
    return f"http://w{number}:80"


def keyed(number: int) -> RouteRequest:
    return RouteRequest("m", key=b"session-%d" % number)


def prompted(number: int, tail: bytes = b"") -> RouteRequest:
    text = b"%08d" % number * (PREFIX_BYTES // 8) + tail
    return RouteRequest("m", text, len(text))


@pytest.mark.parametrize(("policy", "ask"), [(ConsistentHashing(random.Random(1)), keyed), (PrefixHash(), prompted)])
def test_the_same_goes_to_the_same_and_all_get_their_share(policy: Policy, ask: object) -> None:
    router = Router(fleet_of(5), policy)
    assert callable(ask)
    homes = [router.route(ask(number)).worker.name for number in range(500)]
    assert homes == [router.route(ask(number)).worker.name for number in range(500)]
    assert all(60 <= count <= 150 for count in Counter(homes).values())


def test_a_worker_more_or_less_moves_only_its_own_keys() -> None:
    registry = fleet_of(5)
    router = Router(registry, ConsistentHashing(random.Random(1)))
    before = [router.route(keyed(number)).worker.name for number in range(500)]
    registry.degrade(url(2), "down")
    during = [router.route(keyed(number)).worker.name for number in range(500)]
    assert all(now == then for now, then in zip(during, before, strict=True) if then != "2")
    assert len({now for now, then in zip(during, before, strict=True) if then == "2"}) == 4
    registry.ready(url(2))
    assert before == [router.route(keyed(number)).worker.name for number in range(500)]
    registry.add(url(9), source="test", name="9", identity=Identity(model="m"))
    registry.ready(url(9))
    after = [router.route(keyed(number)).worker.name for number in range(500)]
    assert {now for now, then in zip(after, before, strict=True) if now != then} == {"9"}


def test_prompts_that_differ_later_meet() -> None:
    router = Router(fleet_of(5), PrefixHash())
    names = {router.route(prompted(1, tail)).worker.name for tail in (b"", b"a" * 50, b"b" * 5000)}
    assert len(names) == 1


def test_a_hot_prefix_spills_over() -> None:
    """A thousand requests with one beginning: no worker gets over the bound, and each tells why."""
    registry = fleet_of(5)
    router = Router(registry, PrefixHash())
    reasons: Counter[str] = Counter()
    for _ in range(1000):
        choice = router.route(prompted(1))
        choice.worker.load.begin(0, None)
        reasons[choice.reason] += 1
    loads = [worker.load.inflight for worker in registry.snapshot.workers]
    assert max(loads) <= LOAD_FACTOR * 1000 / 5 + 1
    assert set(reasons) == {"prefix_hash", "spill"}
