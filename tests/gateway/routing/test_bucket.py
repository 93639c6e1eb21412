"""Buckets by length."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.bucket import Bucket, cut
from gateway.routing.policy import RouteRequest
from gateway.routing.router import Router
from tests.helpers.clock import FakeClock


def fleet_of(names: str) -> tuple[Registry, FakeClock, Router]:
    registry, clock = Registry(), FakeClock()
    for name in names:
        registry.add(f"http://{name}:80", source="test", name=name, identity=Identity(model="m"))
        registry.ready(f"http://{name}:80")
    return registry, clock, Router(registry, Bucket(clock, abs_threshold=8, rel_threshold=1.5))


@given(st.lists(st.integers(1, 10_000), min_size=20), st.integers(2, 8))
def test_buckets_hold_about_the_same_bytes(lengths: list[int], buckets: int) -> None:
    bounds = cut(lengths, buckets)
    assert len(bounds) == buckets - 1 and bounds == sorted(bounds)
    for number, bound in enumerate(bounds, start=1):
        below = sum(length for length in lengths if length < bound)
        up_to = sum(length for length in lengths if length <= bound)
        assert below <= number * sum(lengths) / buckets <= up_to


def test_short_and_long_prompts_part_and_work_is_even() -> None:
    _, clock, router = fleet_of("abc")
    rng = random.Random(1)
    work: dict[str, int] = defaultdict(int)
    longest, shortest = {}, {}
    for number in range(3000):
        length = int(rng.lognormvariate(7, 1)) + 1
        clock.advance(0.01)
        name = router.route(RouteRequest("m", b"x", length)).worker.name
        if number >= 1000:
            work[name] += length
            longest[name] = max(longest.get(name, 0), length)
            shortest[name] = min(shortest.get(name, 10**9), length)
    assert max(work.values()) < 1.3 * sum(work.values()) / 3
    assert shortest["a"] < shortest["b"] < shortest["c"] and longest["a"] < longest["b"] < longest["c"]


def test_prompts_of_one_length_spread() -> None:
    _, clock, router = fleet_of("abc")
    names = []
    for _ in range(300):
        clock.advance(0.1)
        choice = router.route(RouteRequest("m", b"x", 500))
        choice.worker.load.begin(0, None)
        names.append(choice.worker.name)
    assert all(70 <= names[30:].count(name) <= 130 for name in "abc")


def test_loads_far_apart_end_it() -> None:
    registry, _, router = fleet_of("ab")
    home = router.route(RouteRequest("m", b"x", 100)).worker
    for _ in range(9):
        assert router.route(RouteRequest("m", b"x", 100)).worker.name == home.name
        home.load.begin(0, None)
    choice = router.route(RouteRequest("m", b"x", 100))
    assert (choice.worker.name != home.name, choice.reason) == (True, "load")
