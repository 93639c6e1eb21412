"""Sticky sessions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing import manual
from gateway.routing.manual import Assignment, Manual
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.router import Router
from tests.helpers.clock import FakeClock


class Fleet:
    """Workers a, b, c under the policy."""

    def __init__(self, assignment: Assignment = Assignment.RANDOM) -> None:
        self.clock = FakeClock()
        self.registry = Registry()
        for name in "abc":
            self.registry.add(f"http://{name}:80", source="test", name=name, identity=Identity(model="m"))
            self.registry.ready(f"http://{name}:80")
        self.policy = Manual(self.clock, random.Random(1), assignment=assignment, max_idle_s=100, sweep_interval_s=10)
        self.router = Router(self.registry, self.policy)

    def ask(self, key: str) -> Choice:
        return self.router.route(RouteRequest("m", key=key.encode()))

    def worker(self, key: str) -> str:
        return self.ask(key).worker.name


def test_a_key_stays_until_it_has_been_idle_for_too_long() -> None:
    fleet = Fleet()
    homes = {f"k{number}": fleet.worker(f"k{number}") for number in range(60)}
    assert set(homes.values()) == set("abc")
    for _ in range(5):
        fleet.clock.advance(90)
        assert {key: fleet.worker(key) for key in homes} == homes
    fleet.clock.advance(101)
    assert [fleet.ask(key).reason for key in homes] == ["assigned"] * 60


def test_idle_keys_are_swept() -> None:
    fleet = Fleet()
    for number in range(50):
        fleet.worker(f"k{number}")
    fleet.clock.advance(60)
    fleet.worker("young")
    fleet.clock.advance(50)
    fleet.worker("young")
    assert len(fleet.policy) == 1


def test_keys_of_a_dead_worker_move_at_once_and_stay_there() -> None:
    fleet = Fleet()
    keys = [f"k{number}" for number in range(60)]
    homes = {key: fleet.worker(key) for key in keys}
    fleet.registry.lost("http://a:80", "killed")
    moved = {key: fleet.worker(key) for key in keys}
    assert "a" not in moved.values()
    assert all(moved[key] == homes[key] for key in keys if homes[key] != "a")
    fleet.registry.ready("http://a:80")
    assert {key: fleet.worker(key) for key in keys} == moved
    # Where it lived before is remembered: if the new home fails too, that is where it goes.
    orphan = next(key for key in keys if homes[key] == "a" and moved[key] == "b")
    fleet.registry.lost("http://b:80", "killed")
    assert fleet.worker(orphan) == "a"


def test_min_load_takes_the_least_loaded() -> None:
    fleet = Fleet(Assignment.MIN_LOAD)
    for name in "ab":
        worker = fleet.registry.snapshot.get(f"http://{name}:80")
        assert worker is not None
        worker.load.begin(0, None)
    assert {fleet.worker(f"k{number}") for number in range(5)} == {"c"}


def test_min_group_gives_each_worker_as_many_keys() -> None:
    fleet = Fleet(Assignment.MIN_GROUP)
    homes = Counter(fleet.worker(f"k{number}") for number in range(30))
    assert set(homes.values()) == {10}


def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "MAX_KEYS", 10)
    fleet = Fleet()
    for number in range(50):
        fleet.worker(f"k{number}")
    assert len(fleet.policy) == 10
    assert fleet.ask("k49").reason == "sticky"
