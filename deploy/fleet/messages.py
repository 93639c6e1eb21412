"""What the fleet's processes tell each other: msgpack structs between controller, replica actors, `canopy status`."""

from __future__ import annotations

from typing import Any

import msgspec

from common.fleet import ReplicaRecord


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How every replica of a fleet is run. `settings` are worker settings by name; the command accepts --config."""

    model: str  # name clients use
    settings: dict[str, Any]
    log_dir: str
    command: list[str]
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    start_timeout_s: float = 600.0


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one replica, from launch to end."""

    replica_id: str
    incarnation: str
    restarts: int = 0


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


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the controller's `status()`."""

    version: int
    model: str
    replicas: list[ReplicaStatus]
