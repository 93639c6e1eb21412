"""The snapshot gateways follow: its version tells exactly when it changed."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.fleet.messages import Ending, Life, Ready
from deploy.fleet.roster import Roster
from deploy.fleet.state import Action, Kill, Launch, Policy

FIRST_VERSION = 1000
READY = Ready(
    url="http://127.0.0.1:1", pid=1, scheduler_pid=2, model="m", max_total_num_tokens=10, max_running_requests=1
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "crash", "beat", "drain", "tick", "fill"]), st.integers(0, 2), st.floats(0, 30)
    ),
    max_size=50,
)


class Driver:
    """Plays events against a roster and keeps the lives it has launched and not yet killed."""

    def __init__(self) -> None:
        numbers = count()
        self.roster = Roster("m", "/logs", Policy(lease_s=20), lambda: str(next(numbers)), FIRST_VERSION)
        self.running: dict[str, Life] = {}
        self.carry_out(self.roster.fill(3, 0.0))

    def play(self, step: str, replica_id: str, now_s: float) -> None:
        if step == "fill":
            self.carry_out(self.roster.fill(3, now_s))
        elif step == "tick":
            self.carry_out(self.roster.tick(now_s))
        elif step == "drain":
            if any(record.replica_id == replica_id for record in self.roster.snapshot.replicas):
                self.carry_out(self.roster.drain(replica_id, now_s))
        elif life := self.running.get(replica_id):
            self.happen(step, life, now_s)

    def happen(self, step: str, life: Life, now_s: float) -> None:
        if step == "ready":
            self.roster.on_ready(life, READY, now_s)
        elif step == "beat":
            self.roster.on_beat(life, now_s)
        else:
            del self.running[life.replica_id]
            self.roster.on_ended(life, Ending(reason="crash", code=1), now_s)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Launch):
                self.running[action.life.replica_id] = action.life
            elif isinstance(action, Kill):
                self.running.pop(action.life.replica_id, None)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_versions_grow_with_every_change_and_only_then(steps: list[tuple[str, int, float]]) -> None:
    driver, now_s = Driver(), 0.0
    for step, index, passed_s in steps:
        now_s += passed_s
        before = driver.roster.snapshot
        driver.play(step, f"replica-{index}", now_s)
        after = driver.roster.snapshot
        assert (after.version > before.version) == (after.replicas != before.replicas)
        ids = [record.replica_id for record in after.replicas]
        assert len(set(ids)) == len(ids) <= 3
        if step == "fill":
            assert sorted(ids) == ["replica-0", "replica-1", "replica-2"]
        assert [r.record for r in driver.roster.status(now_s).replicas] == after.replicas
