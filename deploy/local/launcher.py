"""`canopy serve` itself: checks everything that can be checked, then stands over the fleet until it has ended.

This process only waits. Below it a guard, below that the process of deploy/local/fleet.py with Ray, replicas and
gateway; whichever is killed, the others end what is left.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from common.paths import cache_root
from common.process import bind_port, free_port
from common.settings import validated
from deploy.fleet.description import FleetDescription, ModelDescription, ReplicaBounds
from deploy.guard import guarded, remove_all
from deploy.local.gateway_process import gateway_url
from deploy.local.plan import ServePlan, fleets_dir, write_private
from deploy.model_source import find_model
from deploy.processes import become_subreaper, supervise
from deploy.serve_settings import load_serve_settings
from gateway.config import GatewaySettings
from worker.config import WorkerSettings
from worker.preflight import check_before_loading

_SHORT_TMP = "/tmp"  # Ray puts Unix sockets, whose paths are limited to 107 bytes, some 70 below its directory
_LONGEST_TMP = 20
_SHOW_CURSOR = "\x1b[?25h"
WORKER_COMMAND = [sys.executable, "-P", "-m", "worker"]


def serve(argv: Sequence[str], env: Mapping[str, str], *, worker_command: list[str] = WORKER_COMMAND) -> int:
    """Run one model in the foreground. Returns the exit code; raises UserError before anything is started."""
    return run_fleet(describe(argv, env), env, worker_command=worker_command)


def describe(argv: Sequence[str], env: Mapping[str, str]) -> FleetDescription:
    """The fleet that the flags of `canopy serve MODEL` ask for. Raises UserError."""
    settings = load_serve_settings(argv, env)
    source = find_model(settings.worker.model_path)
    count = settings.fleet.replicas
    decided = ("model_path", "served_model_name")
    model = ModelDescription(
        name=settings.worker.served_model_name or source.name or settings.worker.model_name,
        model=source.path,
        replicas=ReplicaBounds(min=count, max=count),
        engine={name: value for name, value in settings.worker_values.items() if name not in decided},
        start_timeout_s=settings.fleet.start_timeout_s,
    )
    return FleetDescription(models=(model,), gateway=settings.gateway_values)


def run_fleet(fleet: FleetDescription, env: Mapping[str, str], *, worker_command: list[str] = WORKER_COMMAND) -> int:
    """Run a fleet on this machine in the foreground. Returns the exit code; raises UserError before anything is
    started."""
    become_subreaper()
    plan = make_plan(fleet, env, worker_command=worker_command)
    run_dir, fleet_file = Path(plan.run_dir), Path(plan.fleet_file)
    try:
        plan_file = run_dir / "plan.json"
        write_private(plan_file, msgspec.json.encode(plan))
        command = [sys.executable, "-P", "-m", "deploy.local.fleet", str(plan_file)]
        outcome = supervise(guarded(command, remove=[run_dir, fleet_file]), is_guard=True, cwd=run_dir)
    finally:
        remove_all(run_dir)
        remove_all(fleet_file)
        if sys.stdout.isatty():
            sys.stdout.write(_SHOW_CURSOR)  # it may have been stopped while it showed progress
    if outcome.was_stopped:
        return 0
    if outcome.code not in (0, 1, 2):
        print(
            f"canopy: the fleet ended unexpectedly ({outcome.code}); see the logs in {plan.log_dir}.", file=sys.stderr
        )
        return 1
    return outcome.code


def make_plan(fleet: FleetDescription, env: Mapping[str, str], *, worker_command: list[str]) -> ServePlan:
    """Look at models and port, and make the fleet's private directory."""
    for model in fleet.models:
        source = find_model(model.model)
        check_before_loading(validated(WorkerSettings, {**model.engine, "model_path": source.path}))
    gateway = validated(GatewaySettings, fleet.gateway)
    port = gateway.port or free_port(gateway.host)
    bind_port(gateway.host, port).close()
    cache = cache_root(env)
    fleets_dir(cache).mkdir(parents=True, exist_ok=True)
    return ServePlan(
        fleet=msgspec.structs.replace(fleet, gateway={**fleet.gateway, "port": port}),
        url=gateway_url(gateway.model_copy(update={"port": port})),
        shutdown_grace_s=gateway.shutdown_grace_s,
        worker_command=worker_command,
        run_dir=tempfile.mkdtemp(prefix="canopy-", dir=_temporary_root()),
        log_dir=str(cache / "logs" / f"port-{port}"),
        fleet_file=str(fleets_dir(cache) / f"port-{port}-{os.getpid()}.json"),
    )


def _temporary_root() -> str:
    root = tempfile.gettempdir()
    return root if len(root) <= _LONGEST_TMP else _SHORT_TMP
