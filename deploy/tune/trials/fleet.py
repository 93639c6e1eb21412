"""Experiments on a live fleet: canaries by its controller, figures by its gateway's /engine_metrics."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from common.errors import UserError
from common.settings import validated
from common.tuning import finding as rules
from common.tuning.observation import Facts, Observation
from common.tuning.replica_watch import ReplicaWatch, Series, merged
from deploy.fleet.apply import fault_of, missing_of
from deploy.fleet.messages import FleetStatus, ModelStatus
from deploy.tune.trials.bounds import BOUNDS, Change, Value, field_of
from deploy.tune.trials.laboratory import CanaryFailed, LaboratoryLost, Situation, Window
from deploy.tune.trials.readings import Restarted, memory_gb, settings_in_effect, stretch_of
from worker.config import WorkerSettings

FIELDS = [field_of(flag) for flag in BOUNDS]
PLACE_S = 180.0  # that a canary may wait for a place on a node
POLL_S = 1.0
MIN_SAMPLES = 3  # of a replica in a window
MIN_JUDGED = 2 * rules.MIN_SAMPLES  # before rules are asked
_FACTS = frozenset(Facts.__dataclass_fields__)

Readings = Mapping[str, Series]
"""Metrics of each replica that tells them, by its name."""


class Control(Protocol):
    """The fleet's controller, for one owner of experiments with one model. All raise LaboratoryLost."""

    def status(self) -> FleetStatus:
        """How the fleet is."""
        ...

    def given(self) -> dict[str, Any]:
        """Engine settings of the model's replicas among FIELDS, by field name."""
        ...

    def begin(self, engine: Mapping[str, Any], *, instead: bool) -> str:
        """Have a canary. Returns its version. Raises UserError."""
        ...

    def renew(self) -> bool:
        """We are still here. False: the experiment is over for the fleet."""
        ...

    def end(self, *, keep: bool) -> bool:
        """Let the canary go, or make all replicas like it. False if the experiment was over already."""
        ...


class Time(Protocol):
    """A clock that can be waited on."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


@dataclass(slots=True)
class FleetLaboratory:
    """`read` asks the gateway; `in_place`: the canary takes the place of a replica instead of one beside them."""

    control: Control
    read: Callable[[], Readings]
    model: str
    facts: Facts
    time: Time
    window_s: float
    look_s: float
    in_place: bool = False
    _canary: str = ""  # name of its replica
    _version: str = ""
    _others: tuple[str, ...] = ()

    def look(self) -> Situation:
        """Watch all ready replicas of the model."""
        names = self._ready(self._status())
        if not names:
            raise LaboratoryLost(f"{self.model} has no ready replica.")
        samples = self._sampled(self.look_s, least=MIN_JUDGED)
        told = [name for name in names if len(samples[name]) >= MIN_SAMPLES]
        if not told:
            raise LaboratoryLost(f"The gateway shows no metrics of the replicas of {self.model}.")
        last = samples[told[0]][-1][1]
        settings = settings_in_effect(self.control.given(), last)
        return Situation(settings, [self._seen(name, samples[name], settings) for name in told], memory_gb(last))

    def begin(self, change: Change) -> None:
        engine = {field_of(flag): value for flag, value in change.items()}
        try:
            validated(WorkerSettings, {**self.control.given(), **engine, "model_path": "demo"})
            self._version = self.control.begin(engine, instead=self.in_place)
        except UserError as refusal:
            raise CanaryFailed(str(refusal)) from None
        self._canary, self._others = self._wait_for_canary(), self._ready(self._status())
        if not self._others:
            raise CanaryFailed("there is no other replica to compare with")

    def window(self) -> Window:
        samples = self._sampled(self.window_s)
        names = (self._canary, *self._others)
        try:
            if missing := next((name for name in names if len(samples[name]) < MIN_SAMPLES), None):
                raise CanaryFailed(f"{missing} does not tell its metrics")
            canary, *others = (stretch_of(samples[name]) for name in names)
        except Restarted:
            raise CanaryFailed("a replica was started anew meanwhile") from None
        return Window(canary, others)

    def keep(self) -> None:
        version, self._version = self._version, ""
        if not self.control.end(keep=True):
            raise CanaryFailed("the fleet has ended the experiment")
        while True:
            model = self._model(status := self.control.status())
            if model.held_version == version:
                raise CanaryFailed(f"the other replicas could not start with it: {model.held_reason}")
            if model.version != version:
                raise LaboratoryLost(f"{self.model} was changed by somebody else.")
            if self._is_whole(status):
                return
            self.time.sleep(POLL_S)

    def drop(self) -> None:
        if not self._version:
            return
        self._version, self._canary = "", ""
        self.control.end(keep=False)
        while self._has_canary(status := self.control.status()) or not self._is_whole(status):
            self.time.sleep(POLL_S)

    def _wait_for_canary(self) -> str:
        """Until the canary serves and the gateway shows it. Returns its name."""
        while True:
            status = self._status()
            trial = self._model(status).trial
            canary = next((r for r in status.replicas if trial and r.record.replica_id == trial.replica_id), None)
            if canary is not None:
                name = canary.record.replica_id
                if canary.record.state == "ready" and name in self.read():
                    return name
                if canary.waits_for_place and canary.state_for_s > PLACE_S:
                    raise CanaryFailed(f"it found no place within {PLACE_S:.0f} s")
            self.time.sleep(POLL_S)

    def _sampled(self, seconds: float, least: int = MIN_SAMPLES) -> dict[str, list[tuple[float, Series]]]:
        """Of each replica, from now on for `seconds`, both ends included, and longer if asking takes so long that these
        would not be `least`."""
        samples: defaultdict[str, list[tuple[float, Series]]] = defaultdict(list)
        end_s = self.time.now_s() + seconds
        for asked in itertools.count(1):
            if self._version:
                self._status()
            for name, series in self.read().items():
                samples[name].append((self.time.now_s(), series))
            left_s = end_s - self.time.now_s()
            if left_s <= 0 and asked >= least:
                break
            self.time.sleep(min(POLL_S, max(left_s, 0.0)))
        return samples

    def _status(self) -> FleetStatus:
        """How the fleet is. Raises CanaryFailed if there should be a canary that goes on and is not."""
        status = self.control.status()
        if self._version:
            trial = self._model(status).trial
            if trial is not None and trial.fault:
                last = f": {trial.log_tail[-1]}" if trial.log_tail else ""
                raise CanaryFailed(f"the canary has ended, {trial.fault}{last}")
            if not self.control.renew():
                raise CanaryFailed("the fleet has ended the experiment")
        return status

    def _ready(self, status: FleetStatus) -> tuple[str, ...]:
        """Names of the model's ready replicas, the canary not among them."""
        records = (replica.record for replica in status.replicas)
        return tuple(
            r.replica_id
            for r in records
            if r.model == self.model and r.state == "ready" and (not self._version or r.version != self._version)
        )

    def _is_whole(self, status: FleetStatus) -> bool:
        """Whether the model is as wanted. Raises LaboratoryLost if waiting for that is in vain."""
        if fault := fault_of(status):
            raise LaboratoryLost(fault)
        return not missing_of(self._model(status), status)

    def _has_canary(self, status: FleetStatus) -> bool:
        model = self._model(status)
        return any(r.record.model == self.model and r.record.version != model.version for r in status.replicas)

    def _model(self, status: FleetStatus) -> ModelStatus:
        found = next((model for model in status.models if model.name == self.model), None)
        if found is None:
            raise LaboratoryLost(f"{self.model} has left the fleet.")
        return found

    def _seen(self, name: str, samples: Sequence[tuple[float, Series]], settings: Mapping[str, Value]) -> Observation:
        watch = ReplicaWatch(name)
        for now_s, series in samples:
            watch.take(now_s, series)
        known: dict[str, Any] = {field_of(flag): v for flag, v in settings.items() if field_of(flag) in _FACTS}
        return watch.observation(merged(Facts(**known), self.facts))
