"""Experiments with a fleet: how long a canary is waited for, against a controller and a time that are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from common.fleet import ReplicaRecord
from common.tuning.observation import Facts
from deploy.fleet.messages import FleetStatus, ModelStatus, ReplicaStatus, TrialStatus
from deploy.tune.trials.fleet import PLACE_S, FleetLaboratory
from deploy.tune.trials.laboratory import CanaryFailed
from tests.helpers.clock import FakeClock


class Time(FakeClock):
    """Sleeping moves it."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


def replica(name: str, state: Any, version: str, for_s: float = 0.0, **parts: Any) -> ReplicaStatus:
    record = ReplicaRecord(replica_id=name, incarnation=name, url="u", model="m", state=state, version=version)
    return ReplicaStatus(record=record, state_for_s=for_s, log_path="", **parts)


class Control:
    """`canary` says what its replica is like so many seconds after the experiment began."""

    def __init__(self, time: Time, canary: Callable[[float], ReplicaStatus]) -> None:
        self._time = time
        self._canary = canary

    def status(self) -> FleetStatus:
        trial = TrialStatus(version="new", owner="me", replica_id="canary")
        model = ModelStatus(name="m", wanted=1, version="old", trial=trial)
        return FleetStatus(
            version=1, models=[model], replicas=[replica("other", "ready", "old"), self._canary(self._time.now_s())]
        )

    def given(self) -> dict[str, Any]:
        return {}

    def begin(self, engine: Mapping[str, Any], *, instead: bool) -> str:
        return "new"

    def renew(self) -> bool:
        return True

    def end(self, *, keep: bool) -> bool:
        return True


def laboratory(canary: Callable[[float], ReplicaStatus]) -> tuple[FleetLaboratory, Time]:
    time = Time()
    metrics = {"canary": {"num_running_reqs": 1.0}}
    return FleetLaboratory(
        control=Control(time, canary),
        read=lambda: metrics,
        model="m",
        facts=Facts(),
        time=time,
        window_s=5.0,
        look_s=5.0,
    ), time


def test_a_canary_without_a_place_is_given_up_in_time() -> None:
    found, time = laboratory(lambda now_s: replica("canary", "starting", "new", now_s, waits_for_place=now_s > 5))
    with pytest.raises(CanaryFailed, match="no place within 180 s"):
        found.begin({"max-running-requests": 64})
    assert PLACE_S < time.now_s() < PLACE_S + 5


def test_one_that_takes_long_to_start_is_waited_for() -> None:
    ready_s = 10 * PLACE_S

    def canary(now_s: float) -> ReplicaStatus:
        if now_s < ready_s:
            return replica("canary", "starting", "new", now_s)
        return replica("canary", "ready", "new", now_s - ready_s)

    found, time = laboratory(canary)
    found.begin({"max-running-requests": 64})
    assert time.now_s() == pytest.approx(ready_s, abs=2)
