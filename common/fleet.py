"""What the fleet tells gateways: one record per replica, in versioned snapshots, as msgpack bytes.

Written by deploy/fleet, read by gateway/fleet/ray_discovery.py through the named Ray actor below.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RAY_NAMESPACE = "canopy"
KEPT_FLEET_VARIABLE = "KEPT_FLEET_FILE"  # environment of a gateway: file in which it keeps the last known fleet
CONTROLLER_ACTOR = "canopy-controller"  # method watch(version: int, timeout_s: float) -> bytes of FleetSnapshot


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one replica. A restart keeps `replica_id`, and changes `incarnation` and mostly `url`."""

    replica_id: str
    incarnation: str
    url: str  # http://host:port, empty while starting
    model: str  # name clients use
    state: Literal["starting", "ready", "silent", "draining", "failed"]  # silent: see for yourself whether it serves
    max_total_num_tokens: int = 0
    max_running_requests: int = 0
    restarts: int = 0
    version: str = ""  # of its settings; replicas differ in it during a rolling update
    node: str = ""
    pid: int = 0  # the frontend process
    message: str = ""  # why it failed, for people
    crash_looping: bool = False  # several lives in a row were short


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas at one moment. `version` grows with every change; `watch` returns when it exceeds the asked one."""

    version: int
    replicas: list[ReplicaRecord]
