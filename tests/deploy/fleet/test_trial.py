"""Canaries: one replica with other settings beside the others, or in the place of one, until it is kept or leaves."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from common.errors import UserError
from deploy.fleet.apply import missing_of
from deploy.fleet.kept import FleetState
from deploy.fleet.messages import Beat, Ending, Life, TrialStatus
from deploy.fleet.roster import TRIAL_LEASE_S, Roster
from deploy.fleet.state import Policy
from tests.deploy.fleet.test_roster import FIRST_VERSION, Driver
from tests.helpers.fleets import fleet, model

ENGINE = {"max_running_requests": 7}
BOOM = Ending(reason="its worker exited with code 1", code=1, log_tail=["boom"])


def settled(replicas: int = 2) -> Driver:
    """A fleet of one model, all replicas ready."""
    driver = Driver(fleet(model(replicas=replicas)))
    ready(driver)
    return driver


def ready(driver: Driver) -> None:
    """Until nothing starts any more."""
    for _ in range(20):
        for life in driver.starting():
            driver.make_ready(life)
        driver.tick(5.0)
        for replica in driver.roster.snapshot.replicas:
            if life := driver.running.get(replica.incarnation):
                driver.roster.renew_trial("m", "me", driver.now_s)
                beat(driver, life)


def beat(driver: Driver, life: Life) -> None:
    driver.roster.on_beat(Beat(life=life), driver.now_s)


def begin(driver: Driver, *, instead: bool = False) -> str:
    spec = driver.roster.trial_spec("", ENGINE, instead=instead)
    driver.roster.begin_trial(spec, "me", driver.now_s, instead=instead)
    driver.tick()
    return spec.version


def versions(driver: Driver) -> list[str]:
    return sorted(replica.version for replica in driver.roster.snapshot.replicas)


def trial(driver: Driver) -> TrialStatus | None:
    return driver.roster.status(driver.now_s).models[0].trial


def test_a_canary_is_one_more_replica_and_leaves_again() -> None:
    driver = settled()
    (usual,) = set(versions(driver))
    version = begin(driver)
    ready(driver)
    assert versions(driver) == sorted([usual, usual, version])
    status = driver.roster.status(driver.now_s)
    assert not status.models[0].is_rolling
    assert missing_of(status.models[0], status) == ""
    assert driver.roster.end_trial("m", "me", keep=False)
    ready(driver)
    assert versions(driver) == [usual, usual]
    assert trial(driver) is None


def test_a_canary_in_place_keeps_the_number() -> None:
    driver = settled(3)
    version = begin(driver, instead=True)
    ready(driver)
    assert versions(driver).count(version) == 1
    assert len(versions(driver)) == 3
    driver.roster.end_trial("m", "me", keep=False)
    ready(driver)
    assert version not in versions(driver)
    assert len(versions(driver)) == 3


@pytest.mark.parametrize("instead", [False, True])
def test_a_kept_canary_becomes_the_version_of_all(*, instead: bool) -> None:
    driver = settled()
    version = begin(driver, instead=instead)
    ready(driver)
    canary = next(r.incarnation for r in driver.roster.snapshot.replicas if r.version == version)
    assert driver.roster.end_trial("m", "me", keep=True)
    fewest = 2
    for _ in range(40):
        for life in driver.starting():
            driver.make_ready(life)
        driver.tick(1.0)
        for life in list(driver.running.values()):
            beat(driver, life)
        fewest = min(fewest, driver.ready_count())
    assert versions(driver) == [version, version]
    assert canary in driver.running
    assert fewest >= 1
    assert driver.roster.specs["m"].settings["max_running_requests"] == 7


def test_a_canary_has_one_life() -> None:
    driver = settled()
    version = begin(driver)
    (life,) = driver.starting()
    driver.end(life, BOOM)
    ready(driver)
    told = trial(driver)
    assert told is not None
    assert told.fault == BOOM.reason
    assert told.log_tail == ["boom"]
    assert version not in versions(driver)
    assert len(versions(driver)) == 2
    assert not driver.roster.end_trial("m", "me", keep=True)
    assert driver.roster.end_trial("m", "me", keep=False)


def test_an_experiment_whose_owner_died_ends_also_after_a_restart_of_the_controller() -> None:
    driver = settled()
    version = begin(driver)
    state = driver.roster.state
    assert state is not None
    numbers = count(100)
    again = Roster(Policy(), lambda: str(next(numbers)), FIRST_VERSION)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=FleetState))
    for life in driver.running.values():
        again.adopt(life, 0.0)
    again.tick(1.0)
    assert version in {replica.version for replica in again.snapshot.replicas}
    assert again.renew_trial("m", "me", 50.0)
    again.tick(51.0 + TRIAL_LEASE_S)
    assert version not in {replica.version for replica in again.snapshot.replicas}
    assert not again.renew_trial("m", "me", 120.0)


def test_a_new_description_ends_an_experiment() -> None:
    driver = settled()
    version = begin(driver)
    ready(driver)
    driver.apply(fleet(model(engine={"schedule_policy": "lpm"})))
    ready(driver)
    assert version not in versions(driver)
    assert trial(driver) is None


def test_when_there_can_be_no_experiment() -> None:
    driver = settled(1)
    with pytest.raises(UserError, match="cannot give way"):
        driver.roster.trial_spec("", ENGINE, instead=True)
    with pytest.raises(UserError, match="no model other"):
        driver.roster.trial_spec("other", ENGINE, instead=False)
    with pytest.raises(UserError, match="these settings already"):
        driver.roster.trial_spec("", {}, instead=False)
    begin(driver)
    with pytest.raises(UserError, match="under way"):
        driver.roster.trial_spec("", ENGINE, instead=False)
    assert not driver.roster.end_trial("m", "somebody else", keep=True)
    unready = Driver(fleet(model()))
    with pytest.raises(UserError, match="not as wanted yet"):
        unready.roster.trial_spec("", ENGINE, instead=False)
