"""All replicas of the fleet and the versioned snapshot of them that gateways follow. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from common.errors import UserError
from common.fleet import FleetSnapshot
from deploy.fleet.changes import changes_between, within
from deploy.fleet.description import FleetDescription, ModelDescription
from deploy.fleet.group import ModelGroup
from deploy.fleet.kept import FleetState, GroupState
from deploy.fleet.messages import Beat, Ending, FleetStatus, Life, Ready, ReplicaSpec, ReplicaStatus
from deploy.fleet.scaling import Autoscaler, AutoscalerFactory, ReplicaView
from deploy.fleet.specs import Surroundings
from deploy.fleet.state import Action, Policy, Replica, State

TRIAL_LEASE_S = 60.0  # an experiment whose owner was not heard of for so long is over


class Roster:
    """Owner of the fleet's groups. Methods return the actions that the caller has to carry out.

    `first_version` must exceed every version of an earlier controller, so that a watcher never waits for the past.
    """

    def __init__(
        self,
        policy: Policy,
        new_incarnation: Callable[[], str],
        first_version: int,
        make_autoscaler: AutoscalerFactory | None = None,
    ) -> None:
        self._policy = policy
        self._new_incarnation = new_incarnation
        self._make_autoscaler = make_autoscaler
        self._description: FleetDescription | None = None
        self._around: Surroundings | None = None
        self._groups: dict[str, ModelGroup] = {}
        self._trials_until_s: dict[str, float] = {}  # by model name
        self._snapshot = FleetSnapshot(version=first_version, replicas=[])

    @property
    def snapshot(self) -> FleetSnapshot:
        """All replicas as they are now; its version changes exactly when something in it does."""
        return self._snapshot

    @property
    def description(self) -> FleetDescription | None:
        """What was last applied; None before that."""
        return self._description

    @property
    def around(self) -> Surroundings | None:
        """Where it was last applied; None before that."""
        return self._around

    @property
    def state(self) -> FleetState | None:
        """What must be kept; None before anything was applied."""
        if self._description is None or self._around is None:
            return None
        return FleetState(
            description=self._description, around=self._around, groups={n: g.state for n, g in self._groups.items()}
        )

    def restore(self, state: FleetState) -> None:
        """Go on from what an earlier controller kept."""
        self._description, self._around = state.description, state.around
        for name, group_state in state.groups.items():
            self._groups[name] = self._new_group(group_state, state.description.model(name))
            self._groups[name].is_leaving = state.description.model(name) is None

    def adopt(self, life: Life, now_s: float) -> bool:
        """Take over a replica that an earlier controller started. False if its model is not known: it has to end."""
        group = self._groups.get(life.model)
        if group is None:
            return False
        group.adopt(life, now_s)
        self._publish()
        return True

    def apply(self, description: FleetDescription, specs: Mapping[str, ReplicaSpec], around: Surroundings) -> list[str]:
        """Make the fleet that of `description`; `specs` by model name. Returns what differs, one line each."""
        changes = [change.text for change in changes_between(self.state, description, specs)]
        self._description, self._around = description, around
        for model in description.models:
            spec = specs[model.name]
            group = self._groups.get(model.name)
            if group is None:
                first = GroupState(wanted=model.replicas.min, target=spec.version, specs={spec.version: spec})
                self._groups[model.name] = self._new_group(first, model)
                continue
            group.is_leaving = False
            group.update(spec)
            group.scale(within(model.replicas, group.state.wanted))
            group.autoscaler = self._autoscaler(model)
        for name, group in self._groups.items():
            group.is_leaving = description.model(name) is None
        return changes

    @property
    def wanted(self) -> dict[str, int]:
        """Replicas by model name."""
        return {name: group.state.wanted for name, group in self._groups.items() if not group.is_leaving}

    @property
    def specs(self) -> dict[str, ReplicaSpec]:
        """How replicas are run, by model name."""
        return {name: group.spec for name, group in self._groups.items() if not group.is_leaving}

    def wanted_after(self, description: FleetDescription) -> dict[str, int]:
        """Replicas by model name, if `description` were applied."""
        return {m.name: within(m.replicas, self.wanted.get(m.name, m.replicas.min)) for m in description.models}

    def scalable(self, name: str, replicas: int) -> str:
        """The model that may be told to have so many replicas; an empty name is that of the only one. Raises
        UserError."""
        model = self._named(name, "canopy scale MODEL N")
        low, high = model.replicas.min, model.replicas.max
        if model.autoscaling is not None:
            raise UserError(
                f"{model.name} is scaled by its load, from {low} to {high} replicas; change its fleet file."
            )
        if replicas < 1 or (not model.replicas.is_fixed and within(model.replicas, replicas) != replicas):
            bounds = f"from {low} to {high}" if not model.replicas.is_fixed else "at least 1"
            raise UserError(f"{model.name} may have {bounds} replicas (got {replicas}).")
        return model.name

    def scale(self, model: str, replicas: int) -> None:
        """Have this many replicas of a model. Raises KeyError for an unknown one."""
        self._groups[model].scale(replicas)

    def trial_spec(self, name: str, engine: Mapping[str, Any], *, instead: bool) -> ReplicaSpec:
        """How a canary with these engine settings is run; an empty name is that of the only model. Raises UserError if
        there can be no experiment now."""
        name = self._named(name, "--model MODEL").name
        group = self._groups[name]
        if group.state.trial is not None:
            raise UserError(f"Another experiment with {name} is under way; wait for its end.")
        if not group.is_settled:
            raise UserError(f"{name} is not as wanted yet; see `canopy status`, and experiment when it is.")
        if instead and group.state.wanted < 2:
            raise UserError(f"{name} has one replica: it cannot give way to one that is compared with it.")
        spec = msgspec.structs.replace(group.spec, settings={**group.spec.settings, **engine})
        if spec.version in group.state.specs:
            raise UserError(f"The replicas of {name} have these settings already.")
        return spec

    def begin_trial(self, spec: ReplicaSpec, owner: str, now_s: float, *, instead: bool) -> None:
        """Have a canary; its owner is to renew the lease."""
        self._groups[spec.model].begin_trial(spec, owner, instead=instead)
        self._trials_until_s[spec.model] = now_s + TRIAL_LEASE_S

    def renew_trial(self, name: str, owner: str, now_s: float) -> bool:
        """The owner is still there. False: the experiment is over for the fleet."""
        group = self._groups.get(name)
        trial = group.state.trial if group is not None else None
        if trial is None or trial.owner != owner:
            return False
        self._trials_until_s[name] = now_s + TRIAL_LEASE_S
        return True

    def end_trial(self, name: str, owner: str, *, keep: bool) -> bool:
        """Let the canary go, or make all replicas like it. False if the experiment was over already."""
        group = self._groups.get(name)
        trial = group.state.trial if group is not None else None
        if group is None or trial is None or trial.owner != owner or (keep and trial.fault is not None):
            return False
        group.end_trial(keep=keep)
        return True

    def engine_settings(self, name: str) -> tuple[str, dict[str, Any]]:
        """A model's name, an empty one being that of the only model, and how its replicas are run. Raises UserError."""
        name = self._named(name, "--model MODEL").name
        return name, self._groups[name].spec.settings

    def on_placed(self, life: Life, now_s: float) -> None:
        """This life has got its place on a node."""
        if replica := self._replica(life):
            replica.on_placed(life.incarnation, now_s)
            self._publish()

    def on_ready(self, life: Life, ready: Ready, now_s: float) -> None:
        """The worker of this life serves."""
        if replica := self._replica(life):
            replica.on_ready(life.incarnation, ready, now_s)
            self._publish()

    def on_beat(self, beat: Beat, now_s: float) -> bool:
        """This life renews its lease. False: the fleet has given it up, it should end."""
        replica = self._replica(beat.life)
        goes_on = replica is not None and replica.on_beat(beat.life.incarnation, now_s, beat.load)
        self._publish()
        return goes_on

    def on_ended(self, life: Life, ending: Ending, now_s: float) -> None:
        """The worker of this life is no more."""
        if replica := self._replica(life):
            replica.on_ended(life.incarnation, ending, now_s)
            self._groups[life.model].judge_update()
            self._publish()

    def drain(self, replica_id: str, now_s: float) -> list[Action]:
        """Let one replica leave; another one takes its place. Raises KeyError for an unknown one."""
        replica = next((r for r in self._all() if r.life.replica_id == replica_id), None)
        if replica is None:
            raise KeyError(replica_id)
        return self._published(replica.drain(now_s))

    def wants_room(self) -> list[ReplicaSpec]:
        """Specs of which it matters whether one more replica would find a place at once."""
        return [group.spec for group in self._groups.values() if group.is_rolling and not group.is_leaving]

    def tick(self, now_s: float, room_for: frozenset[str] = frozenset()) -> list[Action]:
        """What time and wishes ask for. `room_for`: versions of which one more replica would find a place at once."""
        actions: list[Action] = []
        for name, group in self._groups.items():
            if (model := self._model(name)) is not None:
                group.autoscale(model, now_s)
            self._end_orphaned_trial(name, group, now_s)
            actions += group.tick(self._free_ids, now_s, has_room=group.state.target in room_for)
        self._groups = {n: g for n, g in self._groups.items() if g.replicas or not g.is_leaving}
        return self._published(actions)

    def spec_of(self, life: Life) -> ReplicaSpec | None:
        """How this life is run; None if nobody knows any more."""
        group = self._groups.get(life.model)
        return group.state.specs.get(life.version) if group is not None else None

    def siblings(self, life: Life, now_s: float) -> tuple[ModelDescription, list[ReplicaView]] | None:
        """The model of this life and its ready replicas; None if the model has left."""
        model, group = self._model(life.model), self._groups.get(life.model)
        if model is None or group is None:
            return None
        return model, [view for view in group.views(now_s) if view.state == "ready"]

    def status(self, now_s: float) -> FleetStatus:
        """Everything a person may want to know."""
        return FleetStatus(
            version=self._snapshot.version,
            models=[group.status() for group in self._groups.values()],
            replicas=[self._replica_status(r, now_s) for r in self._in_order() if r.state is not State.GONE],
        )

    def _new_group(self, state: GroupState, model: ModelDescription | None) -> ModelGroup:
        return ModelGroup(state, self._policy, self._new_incarnation, self._autoscaler(model))

    def _autoscaler(self, model: ModelDescription | None) -> Autoscaler | None:
        if model is None or model.autoscaling is None or self._make_autoscaler is None:
            return None
        return self._make_autoscaler(model)

    def _end_orphaned_trial(self, name: str, group: ModelGroup, now_s: float) -> None:
        """Whoever experiments may have died; a restarted controller waits for news as long as any."""
        if group.state.trial is None:
            self._trials_until_s.pop(name, None)
        elif now_s >= self._trials_until_s.setdefault(name, now_s + TRIAL_LEASE_S):
            group.end_trial()

    def _named(self, name: str, usage: str) -> ModelDescription:
        """The model of that name; an empty name is that of the only one. Raises UserError."""
        models = self._description.models if self._description is not None else ()
        names = ", ".join(model.name for model in models)
        if not models:
            raise UserError("There is no fleet to change; start one with `canopy serve`.")
        if not name and len(models) > 1:
            raise UserError(f"Which model? The fleet has {names}: {usage}.")
        model = next((model for model in models if model.name == name or not name), None)
        if model is None:
            raise UserError(f"The fleet has no model {name}; it has {names}.")
        return model

    def _model(self, name: str) -> ModelDescription | None:
        return self._description.model(name) if self._description is not None else None

    def _replica(self, life: Life) -> Replica | None:
        group = self._groups.get(life.model)
        return group.replicas.get(life.replica_id) if group is not None else None

    def _all(self) -> list[Replica]:
        return [replica for group in self._groups.values() for replica in group.replicas.values()]

    def _replica_status(self, replica: Replica, now_s: float) -> ReplicaStatus:
        due, spec = replica.restart_at_s, self.spec_of(replica.life)
        return ReplicaStatus(
            record=replica.record(),
            state_for_s=now_s - replica.since_s,
            log_path=log_path(spec.log_dir, replica.life.replica_id) if spec is not None else "",
            log_tail=replica.last_ending.log_tail if replica.last_ending else [],
            restart_in_s=None if due is None else max(0.0, due - now_s),
            is_crash_looping=replica.is_crash_looping,
            is_given_up=replica.is_given_up,
            waits_for_place=replica.waits_for_place,
        )

    def _free_ids(self, count: int) -> Sequence[str]:
        taken = {replica.life.replica_id for replica in self._all()}
        ids = (f"replica-{n}" for n in range(len(taken) + count))
        return [i for i in ids if i not in taken][:count]

    def _in_order(self) -> list[Replica]:
        return sorted(self._all(), key=lambda r: (len(r.life.replica_id), r.life.replica_id))

    def _published(self, actions: list[Action]) -> list[Action]:
        self._publish()
        return actions

    def _publish(self) -> None:
        records = [r.record() for r in self._in_order() if r.state is not State.GONE]
        if records != self._snapshot.replicas:
            self._snapshot = FleetSnapshot(version=self._snapshot.version + 1, replicas=records)


def log_path(log_dir: str, replica_id: str) -> str:
    """Where the worker of a replica writes its output, on the replica's node."""
    return f"{log_dir}/{replica_id}.log"
