"""All replicas of the fleet and the versioned snapshot of them that gateways follow. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Callable

from common.fleet import FleetSnapshot
from deploy.fleet.messages import Ending, FleetStatus, Life, Ready, ReplicaStatus
from deploy.fleet.state import Action, Policy, Replica, State


class Roster:
    """Owner of the replicas' states. Methods return the actions that the caller has to carry out.

    `first_version` must exceed every version of an earlier controller, so that a watcher never waits for the past.
    """

    def __init__(
        self, model: str, log_dir: str, policy: Policy, new_incarnation: Callable[[], str], first_version: int
    ) -> None:
        self._model = model
        self._log_dir = log_dir
        self._policy = policy
        self._new_incarnation = new_incarnation
        self._replicas: dict[str, Replica] = {}
        self._snapshot = FleetSnapshot(version=first_version, replicas=[])

    @property
    def snapshot(self) -> FleetSnapshot:
        """All replicas as they are now; its version changes exactly when something in it does."""
        return self._snapshot

    def adopt(self, life: Life, now_s: float) -> None:
        """Take over a replica that an earlier controller started."""
        self._replicas[life.replica_id] = Replica.adopted(life, self._policy, self._new_incarnation, now_s)
        self._publish()

    def fill(self, replicas: int, now_s: float) -> list[Action]:
        """Add replicas until there are `replicas` of them."""
        actions: list[Action] = []
        for replica_id in self._free_ids(replicas - len(self._replicas)):
            replica, first = Replica.first(replica_id, self._policy, self._new_incarnation, now_s)
            self._replicas[replica_id] = replica
            actions += first
        return self._published(actions)

    def on_ready(self, life: Life, ready: Ready, now_s: float) -> None:
        """The worker of this life serves."""
        if replica := self._replicas.get(life.replica_id):
            replica.on_ready(life.incarnation, ready, now_s)
            self._publish()

    def on_beat(self, life: Life, now_s: float) -> None:
        """This life renews its lease."""
        if replica := self._replicas.get(life.replica_id):
            replica.on_beat(life.incarnation, now_s)

    def on_ended(self, life: Life, ending: Ending, now_s: float) -> None:
        """The worker of this life is no more."""
        if replica := self._replicas.get(life.replica_id):
            replica.on_ended(life.incarnation, ending, now_s)
            self._publish()

    def drain(self, replica_id: str, now_s: float) -> list[Action]:
        """Let one replica leave. Raises KeyError for an unknown one."""
        return self._published(self._replicas[replica_id].drain(now_s))

    def tick(self, now_s: float) -> list[Action]:
        """What the passing of time asks for."""
        return self._published([action for r in self._replicas.values() for action in r.tick(now_s)])

    def status(self, now_s: float) -> FleetStatus:
        """Everything a person may want to know."""
        return FleetStatus(
            version=self._snapshot.version,
            model=self._model,
            replicas=[self._replica_status(r, now_s) for r in self._in_order()],
        )

    def _replica_status(self, replica: Replica, now_s: float) -> ReplicaStatus:
        due = replica.restart_at_s
        return ReplicaStatus(
            record=replica.record(),
            state_for_s=now_s - replica.since_s,
            log_path=log_path(self._log_dir, replica.life.replica_id),
            log_tail=replica.last_ending.log_tail if replica.last_ending else [],
            restart_in_s=None if due is None else max(0.0, due - now_s),
            is_crash_looping=replica.is_crash_looping,
            is_given_up=replica.is_given_up,
        )

    def _free_ids(self, count: int) -> list[str]:
        ids = (f"replica-{n}" for n in range(len(self._replicas) + max(0, count)))
        return [i for i in ids if i not in self._replicas][: max(0, count)]

    def _in_order(self) -> list[Replica]:
        return sorted(self._replicas.values(), key=lambda r: (len(r.life.replica_id), r.life.replica_id))

    def _published(self, actions: list[Action]) -> list[Action]:
        self._publish()
        return actions

    def _publish(self) -> None:
        self._replicas = {i: r for i, r in self._replicas.items() if r.state is not State.GONE}
        records = [r.record() for r in self._in_order()]
        if records != self._snapshot.replicas:
            self._snapshot = FleetSnapshot(version=self._snapshot.version + 1, replicas=records)


def log_path(log_dir: str, replica_id: str) -> str:
    """Where the worker of a replica writes its output, on the replica's node."""
    return f"{log_dir}/{replica_id}.log"
