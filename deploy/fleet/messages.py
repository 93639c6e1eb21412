"""What the fleet's processes tell each other: msgpack structs between controller, replica actors, `canopy status`."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from common.fleet import ReplicaRecord
from deploy.fleet.scaling import ReplicaLoad


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica of one model is run. `settings` are worker settings by name; the command accepts --config."""

    model: str  # name clients use
    settings: dict[str, Any]
    log_dir: str
    command: list[str]
    source: str = ""  # what the replica's node makes the model directory from; empty: settings have model_path
    host: str = ""  # address the worker binds; empty: the address of its node
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    spread: bool = True
    labels: dict[str, str] = {}  # of nodes that may run it
    start_timeout_s: float = 600.0
    drain_timeout_s: float = 60.0

    @property
    def version(self) -> str:
        """Eight hex digits of everything that takes a new process to change."""
        identity = (self.settings, self.source, self.host, self.num_cpus, self.num_gpus, self.spread, self.labels)
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:8]


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one replica, from launch to end."""

    replica_id: str
    incarnation: str
    restarts: int = 0
    model: str = ""
    version: str = ""  # of its ReplicaSpec


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A replica renews its lease. `load`: what its worker said just now; None while it starts, or says nothing."""

    life: Life
    load: ReplicaLoad | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """A worker's ready file, and where it runs."""

    url: str
    pid: int  # frontend process
    scheduler_pid: int
    model: str
    max_total_num_tokens: int
    max_running_requests: int
    incarnation: str = ""
    node: str = ""


class Ending(msgspec.Struct, frozen=True, kw_only=True, tag="ending"):
    """How a life ended. `code` is the worker's exit code, None if nobody could see it."""

    reason: str
    code: int | None = None
    log_tail: list[str] = []


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `canopy status` shows of a replica beside its own load report."""

    record: ReplicaRecord
    state_for_s: float
    log_path: str
    log_tail: list[str] = []  # of the last life that failed
    restart_in_s: float | None = None  # while failed; None: no restart is due
    is_crash_looping: bool = False
    is_given_up: bool = False  # it refused its settings; no restart will come
    waits_for_place: bool = False  # on a node, for longer than a moment


class TrialStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment with one replica of a model."""

    version: str  # of its settings
    owner: str
    replica_id: str = ""  # of the canary, while there is one
    fault: str = ""  # why the canary has ended
    log_tail: list[str] = []


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of one model, and how far a rolling update is."""

    name: str
    wanted: int  # replicas
    version: str  # that all replicas should have
    is_rolling: bool = False  # some replicas still have another version
    held_version: str = ""  # of an update that was given up; `version` is what was gone back to
    held_reason: str = ""
    held_log_tail: list[str] = []
    trial: TrialStatus | None = None  # its replica is not counted in the rest


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway that the fleet runs itself."""

    url: str
    ready_workers: int = 0  # replicas it can route to
    message: str = ""  # why it is not running


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the controller's `status()`."""

    version: int
    models: list[ModelStatus]
    replicas: list[ReplicaStatus]
    gateway: GatewayStatus | None = None  # None: somebody else runs it


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the worker settings that a model's replicas were given, by field name. `refusal` is a sentence."""

    model: str = ""
    settings: dict[str, Any] = {}
    refusal: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller says to a change. `refusal` is a sentence; then nothing was changed."""

    changes: list[str] = []  # one line for people each
    refusal: str = ""
