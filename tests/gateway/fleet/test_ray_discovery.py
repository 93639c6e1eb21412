"""The controller behind Ray, with Ray's few calls faked; tests/deploy runs it on the real one."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import UserError
from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from gateway.fleet import ray_discovery
from gateway.fleet.discovery import FleetLost
from gateway.fleet.ray_discovery import RayFleetWatch


class RayError(Exception):
    """Stands for ray.exceptions.RayError."""


class FakeRay:
    """The module, as far as it is used. `answers` are given one by one; exceptions are raised, None never comes."""

    def __init__(self, *answers: Any) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.answers = list(answers)
        self.inits: list[dict[str, Any]] = []
        self.lookups = 0
        self.alive = False
        self.actor_exists = True

    def is_initialized(self) -> bool:
        return self.alive

    def init(self, **arguments: Any) -> None:
        self.inits.append(arguments)
        self.alive = True

    def shutdown(self) -> None:
        self.alive = False

    def get_actor(self, name: str, *, namespace: str) -> Any:
        assert (name, namespace) == (CONTROLLER_ACTOR, RAY_NAMESPACE)
        self.lookups += 1
        if not self.actor_exists:
            raise ValueError("no such actor\nand a long explanation")
        return SimpleNamespace(watch=SimpleNamespace(remote=self._watch))

    async def _watch(self, version: int, timeout_s: float) -> bytes:
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(fake: FakeRay) -> RayFleetWatch:
        watch = RayFleetWatch("10.0.0.1:6379")
        monkeypatch.setitem(sys.modules, "ray", fake)
        return watch

    return install


async def test_it_connects_once_and_quietly(use: Any) -> None:
    fake = FakeRay(b"one", b"two")
    watch = use(fake)
    assert [await watch.watch(0, 1.0), await watch.watch(1, 1.0)] == [b"one", b"two"]
    assert fake.inits == [
        {"address": "10.0.0.1:6379", "namespace": RAY_NAMESPACE, "log_to_driver": False, "logging_level": "error"}
    ]
    assert fake.lookups == 1
    await watch.close()
    assert not fake.alive


async def test_a_restarting_controller_is_looked_up_again(use: Any) -> None:
    fake = FakeRay(RayError("the actor died\nfor reasons"), b"again")
    watch = use(fake)
    with pytest.raises(FleetLost, match="^the actor died$"):
        await watch.watch(0, 1.0)
    assert await watch.watch(0, 1.0) == b"again"
    assert (fake.lookups, len(fake.inits)) == (2, 1)


async def test_no_controller_yet(use: Any) -> None:
    fake = FakeRay(b"there")
    fake.actor_exists = False
    watch = use(fake)
    with pytest.raises(FleetLost, match="^no such actor$"):
        await watch.watch(0, 1.0)
    fake.actor_exists = True
    assert await watch.watch(0, 1.0) == b"there"


async def test_a_silent_controller_is_given_up(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_discovery, "_ANSWER_MARGIN_S", 0.05)
    watch = use(FakeRay(None))
    with pytest.raises(FleetLost, match="no answer"):
        await watch.watch(0, 0.05)


async def test_faults_of_ours_are_not_hidden(use: Any) -> None:
    watch = use(FakeRay(KeyError("bug")))
    with pytest.raises(KeyError):
        await watch.watch(0, 1.0)


async def test_never_asked_nothing_to_close() -> None:
    await RayFleetWatch("auto").close()


def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed"):
        RayFleetWatch("auto")
