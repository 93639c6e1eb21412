"""The whole fleet as one pure machine: snapshots, rolling updates, scaling, verdicts, under any history of events."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from deploy.fleet.description import AutoscalingDescription, FleetDescription
from deploy.fleet.messages import Beat, Ending, Life
from deploy.fleet.roster import Roster
from deploy.fleet.scaling import ReplicaLoad
from deploy.fleet.state import Action, Kill, Launch, Policy, Stop
from tests.helpers.fleets import AROUND, fleet, model, ready, specs

FIRST_VERSION = 1000
TICK_S = 0.5
BOOM = Ending(reason="its worker exited with code 1", code=1, log_tail=["boom"])
OLD, NEW = {"schedule_policy": "fcfs"}, {"schedule_policy": "lpm"}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "crash", "beat", "drain", "tick", "old", "new", "scale"]),
        st.integers(0, 4),
        st.floats(0, 30),
    ),
    max_size=60,
)


class Driver:
    """Plays events against a roster and keeps the lives it has launched and that have not ended."""

    def __init__(self, description: FleetDescription, *, room: bool = True) -> None:
        numbers = count()
        self.roster = Roster(Policy(lease_s=20), lambda: str(next(numbers)), FIRST_VERSION)
        self.running: dict[str, Life] = {}  # by incarnation
        self.room = room
        self.now_s = 0.0
        self.apply(description)

    def apply(self, description: FleetDescription) -> list[str]:
        changes = self.roster.apply(description, specs(description), AROUND)
        self.tick()
        return changes

    def tick(self, passed_s: float = 0.0) -> None:
        self.now_s += passed_s
        room_for = {spec.version for spec in self.roster.wants_room()} if self.room else set()
        self.carry_out(self.roster.tick(self.now_s, frozenset(room_for)))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            life = action.life
            if isinstance(action, Launch):
                assert all(other.replica_id != life.replica_id for other in self.running.values()), "two lives at once"
                assert self.roster.spec_of(life) is not None
                self.running[life.incarnation] = life
            elif isinstance(action, Stop):
                self.end(life, Ending(reason="stopped", code=0))
            else:
                assert isinstance(action, Kill)
                self.running.pop(life.incarnation, None)

    def make_ready(self, life: Life) -> None:
        self.roster.on_placed(life, self.now_s)
        self.roster.on_ready(life, ready(life.model, f"http://{life.incarnation}"), self.now_s)

    def end(self, life: Life, ending: Ending = BOOM) -> None:
        if self.running.pop(life.incarnation, None) is not None:
            self.roster.on_ended(life, ending, self.now_s)

    def starting(self) -> list[Life]:
        """Lives that are not ready yet."""
        waiting = {r.replica_id for r in self.roster.snapshot.replicas if r.state == "starting"}
        return [life for life in self.running.values() if life.replica_id in waiting]

    def ready_count(self) -> int:
        return sum(record.state == "ready" for record in self.roster.snapshot.replicas)

    def versions(self) -> set[str]:
        return {record.version for record in self.roster.snapshot.replicas}

    def run(self, ticks: int, *, fewest: int = 0) -> None:
        """Let time pass; whatever starts becomes ready, and everyone who is ready beats."""
        for _ in range(ticks):
            for life in self.starting():
                self.make_ready(life)
            for life in self.running.values():
                self.roster.on_beat(Beat(life=life), self.now_s)
            self.tick(TICK_S)
            assert self.ready_count() >= fewest


@pytest.mark.parametrize("room", [True, False])
def test_an_update_replaces_one_at_a_time_and_keeps_all_but_one_ready(room: bool) -> None:
    driver = Driver(fleet(model(replicas=4, engine=OLD)), room=room)
    driver.run(2)
    (before,) = driver.versions()
    changes = driver.apply(fleet(model(replicas=4, engine=NEW)))
    (after,) = {spec.version for spec in driver.roster.specs.values()}
    assert changes == [f"m: roll {before} -> {after}, one replica at a time"]
    counts = set()
    for _ in range(60):
        driver.run(1, fewest=4 if room else 3)
        counts.add(len(driver.running))
    assert driver.versions() == {after}
    assert driver.ready_count() == 4
    assert min(counts) == (4 if room else 3)
    assert max(counts) == 5  # the last old one drains while the last new one waits for its place


def test_a_replica_beyond_the_wanted_number_that_finds_no_place_makes_an_old_one_leave() -> None:
    driver = Driver(fleet(model(replicas=2, engine=OLD)))
    driver.run(2)
    driver.apply(fleet(model(replicas=2, engine=NEW)))
    (unplaced,) = driver.starting()
    for _ in range(40):
        for life in driver.running.values():
            driver.roster.on_beat(Beat(life=life), driver.now_s)
        driver.tick(TICK_S)
    assert len(driver.running) == 2
    assert driver.ready_count() == 1
    driver.make_ready(unplaced)
    driver.run(60, fewest=1)
    assert driver.ready_count() == 2
    assert len(driver.versions()) == 1


def test_an_update_that_crash_loops_is_held_and_the_old_version_goes_on() -> None:
    driver = Driver(fleet(model(replicas=3, engine=OLD)), room=False)
    driver.run(2)
    before = driver.versions()
    changed = fleet(model(replicas=3, engine=NEW))
    driver.apply(changed)
    (broken,) = {spec.version for spec in driver.roster.specs.values()}
    for _ in range(200):
        for life in list(driver.running.values()):
            driver.roster.on_beat(Beat(life=life), driver.now_s)
        for life in driver.starting():
            driver.end(life) if life.version == broken else driver.make_ready(life)
        driver.tick(TICK_S)
        assert driver.ready_count() >= 2
    assert driver.versions() == before
    assert driver.ready_count() == 3
    (status,) = driver.roster.status(driver.now_s).models
    assert (status.held_version, status.held_log_tail, status.version) == (broken, ["boom"], *before)
    assert status.held_reason.startswith("crash loop, 3 short lives in a row")
    assert driver.apply(changed) == [f"m: try version {broken} again, one replica at a time"]
    driver.run(60, fewest=2)
    assert driver.versions() == {broken}
    assert driver.roster.status(driver.now_s).models[0].held_version == ""


def test_settings_that_are_refused_are_held_at_once() -> None:
    driver = Driver(fleet(model(replicas=2, engine=OLD)))
    driver.run(2)
    before = driver.versions()
    driver.apply(fleet(model(replicas=2, engine=NEW)))
    (new,) = driver.starting()
    driver.end(new, Ending(reason="its worker exited with code 2", code=2, log_tail=["no such model"]))
    driver.run(10, fewest=2)
    assert driver.versions() == before
    assert driver.roster.status(driver.now_s).models[0].held_log_tail == ["no such model"]


def test_a_broken_first_version_is_replaced_at_once() -> None:
    driver = Driver(fleet(model(replicas=3, engine=OLD)))
    for life in driver.starting():
        driver.end(life)
    driver.apply(fleet(model(replicas=3, engine=NEW)))
    driver.tick()
    assert len(driver.starting()) == 3
    driver.run(3)
    assert driver.ready_count() == 3


def test_scaling_down_drains_and_up_starts() -> None:
    driver = Driver(fleet(model(replicas=2, most=6)))
    driver.run(2)
    driver.roster.scale("m", 6)
    driver.run(3, fewest=2)
    assert driver.ready_count() == 6
    busy = [life for life in driver.running.values() if life.replica_id in ("replica-0", "replica-5")]
    for life in busy:
        driver.roster.on_beat(Beat(life=life, load=ReplicaLoad(running_requests=3)), driver.now_s)
    driver.roster.scale("m", 2)
    driver.tick()
    assert [r.state for r in driver.roster.snapshot.replicas].count("draining") == 4
    driver.run(10, fewest=2)
    assert {life.replica_id for life in driver.running.values()} == {"replica-0", "replica-5"}


def test_models_come_and_leave_with_the_description() -> None:
    driver = Driver(fleet(model("a", 2), model("b", 1)))
    driver.run(2)
    assert driver.apply(fleet(model("a", 3), model("c", 1))) == [
        "a: scale 2 -> 3",
        "c: start 1 replica",
        "b: drain and stop 1 replica",
    ]
    driver.run(10, fewest=3)
    assert sorted(r.model for r in driver.roster.snapshot.replicas) == ["a", "a", "a", "c"]
    assert [m.name for m in driver.roster.status(driver.now_s).models] == ["a", "c"]
    assert driver.apply(fleet(model("a", 3), model("c", 1))) == ["a: keep 3 replicas", "c: keep 1 replica"]


def test_a_restored_roster_adopts_its_replicas_and_ends_strangers() -> None:
    driver = Driver(fleet(model(replicas=2, engine=OLD)))
    driver.run(2)
    kept = driver.roster.state
    assert kept is not None
    lives = list(driver.running.values())
    driver.roster = Roster(Policy(), lambda: "new", FIRST_VERSION)
    driver.roster.restore(kept)
    assert all(driver.roster.adopt(life, 0.0) for life in lives)
    assert not driver.roster.adopt(Life(replica_id="replica-9", incarnation="x", model="gone"), 0.0)
    driver.run(3)
    assert {life.incarnation for life in driver.running.values()} == {life.incarnation for life in lives}
    assert driver.ready_count() == 2


def test_a_dead_replica_of_a_version_nobody_knows_is_replaced_by_the_wanted_one() -> None:
    driver = Driver(fleet(model(replicas=1)))
    driver.run(2)
    kept = driver.roster.state
    assert kept is not None
    driver.roster = Roster(Policy(), lambda: "new", FIRST_VERSION)
    driver.roster.restore(kept)
    driver.running.clear()
    unknown = Life(replica_id="replica-0", incarnation="x", model="m", version="forgotten")
    driver.roster.adopt(unknown, 0.0)
    driver.running["x"] = unknown
    driver.end(unknown)
    driver.run(3)
    assert [record.version for record in driver.roster.snapshot.replicas] == [driver.roster.specs["m"].version]


@pytest.mark.parametrize(
    ("description", "name", "replicas", "sentence"),
    [
        (fleet(model("a"), model("b")), "", 3, "Which model? The fleet has a, b: canopy scale MODEL N."),
        (fleet(model("a")), "b", 3, "The fleet has no model b; it has a."),
        (fleet(model("a", 2, 4)), "a", 5, "a may have from 2 to 4 replicas (got 5)."),
        (fleet(model("a", 2, 4)), "a", 1, "a may have from 2 to 4 replicas (got 1)."),
        (
            fleet(model("a", 2, 4, autoscaling=AutoscalingDescription())),
            "a",
            3,
            "a is scaled by its load, from 2 to 4 replicas; change its fleet file.",
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused(
    description: FleetDescription, name: str, replicas: int, sentence: str
) -> None:
    driver = Driver(description)
    with pytest.raises(UserError) as caught:
        driver.roster.scalable(name, replicas)
    assert str(caught.value) == sentence


def test_a_fixed_number_may_be_scaled_to_any() -> None:
    assert Driver(fleet(model("a", 2))).roster.scalable("", 7) == "a"


def test_a_beat_of_a_life_that_is_over_is_refused() -> None:
    driver = Driver(fleet(model(replicas=1)))
    driver.run(2)
    (life,) = driver.running.values()
    driver.end(life)
    assert not driver.roster.on_beat(Beat(life=life), driver.now_s)
    assert not driver.roster.on_beat(Beat(life=Life(replica_id="r", incarnation="i", model="other")), driver.now_s)


class AnyHistory(Driver):
    """Steps in any order."""

    def play(self, step: str, index: int) -> None:
        if step in ("old", "new"):
            self.apply(fleet(model(replicas=3, engine=OLD if step == "old" else NEW)))
        elif step == "scale":
            self.roster.scale("m", index + 1)
        elif step == "tick":
            self.tick()
        else:
            self.happen(step, f"replica-{index}")

    def happen(self, step: str, replica_id: str) -> None:
        life = next((life for life in self.running.values() if life.replica_id == replica_id), None)
        if step == "drain" and any(r.replica_id == replica_id for r in self.roster.snapshot.replicas):
            self.carry_out(self.roster.drain(replica_id, self.now_s))
        elif life is None:
            return
        elif step == "ready":
            self.make_ready(life)
        elif step == "beat":
            self.roster.on_beat(Beat(life=life), self.now_s)
        elif step == "crash":
            self.end(life)


@given(STEPS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_history_ends_in_the_wanted_fleet(steps: list[tuple[str, int, float]], room: bool) -> None:
    """Versions grow with every change and only then; afterwards a quiet fleet becomes what was asked for."""
    driver = AnyHistory(fleet(model(replicas=3, engine=OLD)), room=room)
    for step, index, passed_s in steps:
        driver.now_s += passed_s
        before = driver.roster.snapshot
        driver.play(step, index)
        after = driver.roster.snapshot
        assert (after.version > before.version) == (after.replicas != before.replicas)
        ids = [record.replica_id for record in after.replicas]
        assert len(set(ids)) == len(ids)
        assert {life.replica_id for life in driver.running.values()} <= set(ids)
    driver.run(150)
    (wanted,) = driver.roster.status(driver.now_s).models
    assert driver.ready_count() == wanted.wanted == len(driver.running)
    assert driver.versions() == {wanted.version}
