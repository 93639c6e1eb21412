"""All replicas of one model: how many are wanted, of which version, and what became of the last update. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from deploy.fleet.changes import within
from deploy.fleet.description import ModelDescription
from deploy.fleet.kept import GroupState, Held, Trial
from deploy.fleet.messages import Life, ModelStatus, ReplicaSpec, TrialStatus
from deploy.fleet.rollout import NOTHING, Step, is_done, next_step
from deploy.fleet.scaling import Autoscaler, ReplicaView, least_loaded
from deploy.fleet.state import Action, Policy, Replica, State


class ModelGroup:
    """Owner of one model's replicas. Methods return the actions that the caller has to carry out."""

    def __init__(
        self,
        state: GroupState,
        policy: Policy,
        new_incarnation: Callable[[], str],
        autoscaler: Autoscaler | None = None,
    ) -> None:
        self.state = state
        self.replicas: dict[str, Replica] = {}
        self.autoscaler = autoscaler
        self.is_leaving = False  # the model was taken out of the fleet
        self._policy = policy
        self._new_incarnation = new_incarnation

    @property
    def spec(self) -> ReplicaSpec:
        """Of the version that all replicas should have."""
        return self.state.specs[self.state.target]

    @property
    def is_rolling(self) -> bool:
        """Whether some replicas have another version, so that room for one more matters."""
        return any(r.life.version != self.state.target for r in self.replicas.values() if not self._is_canary(r))

    @property
    def is_settled(self) -> bool:
        """Whether all is as wanted."""
        return is_done(list(self.replicas.values()), self.state.wanted, self.state.target)

    def begin_trial(self, spec: ReplicaSpec, owner: str, *, instead: bool) -> None:
        """Have one replica that is run like this, for an experiment: beside the wanted ones, or instead of one."""
        trial = Trial(version=spec.version, owner=owner, instead=instead)
        specs = {**self.state.specs, spec.version: spec}
        self.state = msgspec.structs.replace(self.state, specs=specs, trial=trial)

    def end_trial(self, *, keep: bool = False) -> None:
        """The canary leaves, or with `keep` every replica becomes like it. Nothing where there is no trial."""
        trial = self.state.trial
        if trial is None:
            return
        if keep and trial.fault is None:
            self.update(self.state.specs[trial.version])
        else:
            self.state = msgspec.structs.replace(self.state, specs=self._specs_without(trial), trial=None)

    def adopt(self, life: Life, now_s: float) -> None:
        """Take over a replica that an earlier controller started."""
        self.replicas[life.replica_id] = Replica.adopted(life, self._policy_of(life), self._new_incarnation, now_s)

    def update(self, spec: ReplicaSpec) -> None:
        """Every replica should be run like this from now on. The same again tries a held update once more."""
        state = self.state
        target_works = any(r.state is State.READY and r.life.version == state.target for r in self.replicas.values())
        fallback = state.target if target_works and spec.version != state.target else state.fallback
        specs = {v: s for v, s in state.specs.items() if v in self._versions() or v == fallback}
        self.state = GroupState(
            wanted=state.wanted, target=spec.version, specs={**specs, spec.version: spec}, fallback=fallback
        )

    def scale(self, wanted: int) -> None:
        """Have this many replicas."""
        self.state = msgspec.structs.replace(self.state, wanted=wanted)

    def autoscale(self, model: ModelDescription, now_s: float) -> None:
        """Let the policy choose the number, within the model's bounds."""
        if self.autoscaler is not None and not self.is_leaving:
            desired = self.autoscaler.desired(self.views(now_s), self.state.wanted, now_s)
            self.scale(within(model.replicas, desired))

    def tick(self, free_ids: Callable[[int], Sequence[str]], now_s: float, *, has_room: bool) -> list[Action]:
        """What time and wishes ask for. `free_ids(n)` makes names for new replicas."""
        for replica in self.replicas.values():
            if replica.state is State.FAILED and replica.life.version not in self.state.specs:
                replica.drain(now_s)  # nobody knows any more how to restart it
        self._forget_gone()
        actions = [action for r in self.replicas.values() for action in r.tick(now_s)]
        self._forget_gone()
        self.judge_update()
        step = self._step(now_s, has_room=has_room)
        for leaving in step.drain:
            actions += leaving.drain(now_s)
        begun = [self.spec] * step.add + self._missing_canary()
        for replica_id, spec in zip(free_ids(len(begun)), begun, strict=True):
            actions += self._begin(replica_id, spec, now_s)
        self._forget_gone()
        return actions

    def judge_update(self) -> None:
        """Go back to the version before if a replica of the new one cannot start; give up a canary that has ended."""
        self._judge_trial()
        state = self.state
        if not state.fallback or state.fallback == state.target:
            return
        for replica in self.replicas.values():
            if replica.life.version == state.target and replica.is_hopeless:
                ending = replica.last_ending
                assert ending is not None
                held = Held(version=state.target, reason=replica.record().message, log_tail=ending.log_tail)
                self.state = msgspec.structs.replace(state, target=state.fallback, held=held)
                return

    def views(self, now_s: float) -> list[ReplicaView]:
        """The replicas as policies see them."""
        return [self._view(r, now_s) for r in self.replicas.values() if r.state is not State.GONE]

    def status(self) -> ModelStatus:
        """What is wanted, and how far it is."""
        held = self.state.held
        return ModelStatus(
            name=self.spec.model,
            wanted=0 if self.is_leaving else self.state.wanted,
            version=self.state.target,
            is_rolling=self.is_rolling,
            held_version=held.version if held else "",
            held_reason=held.reason if held else "",
            held_log_tail=held.log_tail if held else [],
            trial=self._trial_status(),
        )

    def _step(self, now_s: float, *, has_room: bool) -> Step:
        replicas = list(self.replicas.values())
        if self.is_leaving:
            return Step(drain=tuple(r for r in replicas if r.state is not State.DRAINING))
        regular = [r for r in replicas if not self._is_canary(r)]
        wanted, target, trial = self.state.wanted, self.state.target, self.state.trial
        if trial is not None and trial.fault is None and trial.instead:
            wanted -= 1
        if is_done(regular, wanted, target):
            self._succeed()
            return NOTHING
        return next_step(regular, wanted, target, self._victim(now_s), now_s, has_room=has_room)

    def _succeed(self) -> None:
        """The target works; what was before is not needed any more."""
        if self.state.fallback != self.state.target:
            trial = self.state.trial
            kept = {self.state.target, trial.version if trial is not None else ""}
            specs = {version: spec for version, spec in self.state.specs.items() if version in kept}
            self.state = msgspec.structs.replace(self.state, fallback=self.state.target, specs=specs)

    def _is_canary(self, replica: Replica) -> bool:
        trial = self.state.trial
        return trial is not None and trial.fault is None and replica.life.version == trial.version

    def _missing_canary(self) -> list[ReplicaSpec]:
        """Of the replica to begin for an experiment, if there is one and its canary is not there."""
        trial = self.state.trial
        if trial is None or trial.fault is not None or self.is_leaving:
            return []
        return [] if any(map(self._is_canary, self.replicas.values())) else [self.state.specs[trial.version]]

    def _judge_trial(self) -> None:
        """A canary has one life: once it has ended, nobody knows any more how to restart it."""
        trial = self.state.trial
        dead = next((r for r in self.replicas.values() if self._is_canary(r) and r.state is State.FAILED), None)
        if trial is None or dead is None:
            return
        assert dead.last_ending is not None
        fault = Held(version=trial.version, reason=dead.last_ending.reason, log_tail=dead.last_ending.log_tail)
        self.state = msgspec.structs.replace(
            self.state, specs=self._specs_without(trial), trial=msgspec.structs.replace(trial, fault=fault)
        )

    def _specs_without(self, trial: Trial) -> dict[str, ReplicaSpec]:
        return {version: spec for version, spec in self.state.specs.items() if version != trial.version}

    def _trial_status(self) -> TrialStatus | None:
        trial = self.state.trial
        if trial is None:
            return None
        canary = next((r.life.replica_id for r in self.replicas.values() if self._is_canary(r)), "")
        fault, tail = (trial.fault.reason, trial.fault.log_tail) if trial.fault is not None else ("", [])
        return TrialStatus(version=trial.version, owner=trial.owner, replica_id=canary, fault=fault, log_tail=tail)

    def _begin(self, replica_id: str, spec: ReplicaSpec, now_s: float) -> list[Action]:
        replica, actions = Replica.first(
            replica_id,
            self._policy_for(spec),
            self._new_incarnation,
            now_s,
            model=spec.model,
            version=spec.version,
        )
        self.replicas[replica_id] = replica
        return actions

    def _victim(self, now_s: float) -> Callable[[Sequence[Replica]], Replica]:
        choose = self.autoscaler.victim if self.autoscaler is not None else least_loaded

        def victim(replicas: Sequence[Replica]) -> Replica:
            chosen = choose([self._view(r, now_s) for r in replicas])
            return next(r for r in replicas if r.life.replica_id == chosen)

        return victim

    def _view(self, replica: Replica, now_s: float) -> ReplicaView:
        record = replica.record()
        return ReplicaView(
            replica_id=record.replica_id,
            incarnation=record.incarnation,
            state="failed" if record.state == "silent" else record.state,
            state_for_s=now_s - replica.since_s,
            url=record.url,
            load=replica.load,
            load_age_s=now_s - replica.load_at_s if replica.load is not None else 0.0,
            is_outdated=record.version != self.state.target and not self._is_canary(replica),
        )

    def _forget_gone(self) -> None:
        self.replicas = {i: r for i, r in self.replicas.items() if r.state is not State.GONE}

    def _versions(self) -> set[str]:
        return {r.life.version for r in self.replicas.values()}

    def _policy_of(self, life: Life) -> Policy:
        spec = self.state.specs.get(life.version)
        return self._policy if spec is None else self._policy_for(spec)

    def _policy_for(self, spec: ReplicaSpec) -> Policy:
        return replace(self._policy, start_timeout_s=spec.start_timeout_s, drain_timeout_s=spec.drain_timeout_s)
