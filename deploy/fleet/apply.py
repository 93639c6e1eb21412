"""`canopy serve --cluster FILE`: makes a running fleet that of the file, or starts one on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from common.clock import MonotonicClock
from common.paths import cache_root
from common.settings import Settings, load, option, validated
from deploy.fleet.client import answer_to, connected, named_fleet, status_of
from deploy.fleet.description import FleetDescription
from deploy.fleet.description_file import read_fleet
from deploy.fleet.messages import FleetStatus, ModelStatus
from deploy.fleet.specs import Surroundings
from deploy.local.gateway_process import gateway_url
from deploy.local.launcher import WORKER_COMMAND, run_fleet
from deploy.local.plan import RunningFleet, running_fleets
from deploy.local.prepared import prepared
from deploy.local.progress import Progress
from gateway.config import GatewaySettings

_POLL_S = 0.5
_RESTART_S = 60.0  # that the controller may be away
_EXIT_NOT_REACHED = 1


class ApplySettings(Settings):
    """Make a fleet that of a file: canopy serve --cluster FILE. Exit code 1 if a replica cannot start."""

    cluster: str = option(
        ...,
        "YAML file that describes the fleet: models, replicas, engine and gateway settings (docs/fleet.md)",
        category="Fleet file",
        path=True,
    )
    address: str | None = option(
        None,
        "Ray address of the cluster, or auto; else RAY_ADDRESS, else a fleet of this machine, else a new one here",
        category="Fleet file",
        min_length=1,
    )
    wait: bool = option(True, "wait until the fleet is as described", category="Fleet file")


def main(argv: Sequence[str], env: Mapping[str, str], *, worker_command: list[str] = WORKER_COMMAND) -> int:
    """Apply a fleet file. Returns the exit code; raises UserError with the running fleet untouched."""
    settings = load(ApplySettings, argv, env, prog="canopy serve").settings
    fleet = read_fleet(settings.cluster)
    target = named_fleet(settings.address, env) or _here(fleet, env)
    if target is None:
        return run_fleet(fleet, env, worker_command=worker_command)
    if target.token_file:  # a fleet of this machine
        port = validated(GatewaySettings, fleet.gateway).port
        fleet = msgspec.structs.replace(
            fleet, models=tuple(prepared(model) for model in fleet.models), gateway={**fleet.gateway, "port": port}
        )
    progress = Progress(MonotonicClock(), log_format="json" if fleet.gateway.get("log_format") == "json" else "text")
    with connected(target):
        controller = _controller(target, fleet)
        around = Surroundings(command=worker_command, log_dir=str(cache_root(env) / "logs" / "fleet"))
        call = controller.apply.remote(msgspec.msgpack.encode(fleet), msgspec.msgpack.encode(around))
        for line in answer_to(call):
            progress.line(line)
        return wait_until_reached(controller, progress) if settings.wait else 0


def _controller(target: RunningFleet, fleet: FleetDescription) -> Any:
    """Its handle, after all that can be checked without changing anything."""
    from deploy.fleet.controller import start_controller
    from deploy.fleet.gateway_actor import kept_plan
    from deploy.fleet.node_checks import check_nodes

    if not target.token_file:
        kept = kept_plan()
        check_nodes(fleet, port_is_ours=kept is not None and _address(kept.values) == _address(fleet.gateway))
    return start_controller("json" if fleet.gateway.get("log_format") == "json" else "text")


def wait_until_reached(controller: Any, progress: Progress) -> int:
    """Tell what happens until the fleet is as wanted. Returns the exit code."""
    try:
        while True:
            status = status_of(controller, _RESTART_S)
            progress.replicas([replica.record for replica in status.replicas])
            if fault := fault_of(status):
                print(f"canopy: {fault}", file=sys.stderr)
                return _EXIT_NOT_REACHED
            waiting_for = [text for model in status.models if (text := missing_of(model, status))]
            if not waiting_for and _gateway_knows(status):
                return 0
            progress.waiting("; ".join(waiting_for) or "the gateway finds the replicas")
            time.sleep(_POLL_S)
    finally:
        progress.done_waiting()


def fault_of(status: FleetStatus) -> str:
    """Why waiting is in vain, with the last log lines, or nothing."""
    for model in status.models:
        if model.held_version:
            lines = "".join(f"\n  {line}" for line in model.held_log_tail)
            return (
                f"{model.name}: the update to version {model.held_version} is held, version {model.version} goes on: "
                f"{model.held_reason}{lines}"
            )
    for replica in status.replicas:
        if replica.is_given_up or replica.is_crash_looping:
            lines = "".join(f"\n  {line}" for line in replica.log_tail)
            return (
                f"{replica.record.replica_id} does not start: {replica.record.message}. See {replica.log_path}{lines}"
            )
    if status.gateway is not None and status.gateway.message:
        return status.gateway.message
    return ""


def missing_of(model: ModelStatus, status: FleetStatus) -> str:
    """What is not yet as wanted of a model, or nothing."""
    canary = model.trial.version if model.trial is not None else None
    mine = [r.record for r in status.replicas if r.record.model == model.name and r.record.version != canary]
    ready = sum(record.state == "ready" for record in mine)
    if model.is_rolling:
        new = sum(record.version == model.version and record.state == "ready" for record in mine)
        return f"{model.name}: {new} of {model.wanted} replicas have version {model.version}"
    if ready != model.wanted or len(mine) != model.wanted:
        return f"{model.name}: {ready} of {model.wanted} replicas ready"
    return ""


def _gateway_knows(status: FleetStatus) -> bool:
    return status.gateway is None or status.gateway.ready_workers >= sum(model.wanted for model in status.models)


def _here(fleet: FleetDescription, env: Mapping[str, str]) -> RunningFleet | None:
    """The fleet of this machine whose gateway is at the file's address."""
    return next((f for f in running_fleets(cache_root(env)) if f.url == _address(fleet.gateway)), None)


def _address(gateway: Mapping[str, Any]) -> str:
    return gateway_url(validated(GatewaySettings, gateway))
