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

from common.process import bind_port
from deploy.guard import guarded, remove_all
from deploy.local.plan import ServePlan, fleets_dir, write_private
from deploy.model_source import find_model
from deploy.processes import become_subreaper, supervise
from deploy.serve_settings import load_serve_settings
from worker.models.paths import cache_root
from worker.preflight import check_before_loading

_SHORT_TMP = "/tmp"  # Ray puts Unix sockets, whose paths are limited to 107 bytes, some 70 below its directory
_LONGEST_TMP = 20
_SHOW_CURSOR = "\x1b[?25h"
WORKER_COMMAND = [sys.executable, "-P", "-m", "worker"]


def serve(argv: Sequence[str], env: Mapping[str, str], *, worker_command: list[str] = WORKER_COMMAND) -> int:
    """Run one fleet in the foreground. Returns the exit code; raises UserError before anything is started."""
    become_subreaper()
    plan = make_plan(argv, env, worker_command=worker_command)
    run_dir, fleet_file = Path(plan.run_dir), Path(plan.fleet_file)
    try:
        plan_file = run_dir / "plan.json"
        write_private(plan_file, msgspec.json.encode(plan))
        fleet = [sys.executable, "-P", "-m", "deploy.local.fleet", str(plan_file)]
        outcome = supervise(guarded(fleet, remove=[run_dir, fleet_file]), is_guard=True, cwd=run_dir)
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


def make_plan(argv: Sequence[str], env: Mapping[str, str], *, worker_command: list[str]) -> ServePlan:
    """Validate arguments, model and port, and make the fleet's private directory."""
    settings = load_serve_settings(argv, env)
    source = find_model(settings.worker.model_path)
    check_before_loading(settings.worker.model_copy(update={"model_path": source.path}))
    with bind_port(settings.gateway.host, settings.gateway.port) as sock:
        port = sock.getsockname()[1]
    name = settings.worker.served_model_name or source.name or settings.worker.model_name
    cache = cache_root(env)
    fleets_dir(cache).mkdir(parents=True, exist_ok=True)
    return ServePlan(
        model=name,
        source_path=source.path,
        replicas=settings.fleet.replicas,
        start_timeout_s=settings.fleet.start_timeout_s,
        shutdown_grace_s=settings.gateway.shutdown_grace_s,
        host=settings.gateway.host,
        port=port,
        gateway_values={**settings.gateway_values, "port": port},
        worker_values={**settings.worker_values, "served_model_name": name},
        worker_command=worker_command,
        run_dir=tempfile.mkdtemp(prefix="canopy-", dir=_temporary_root()),
        log_dir=str(cache / "logs" / f"port-{port}"),
        fleet_file=str(fleets_dir(cache) / f"port-{port}-{os.getpid()}.json"),
    )


def _temporary_root() -> str:
    root = tempfile.gettempdir()
    return root if len(root) <= _LONGEST_TMP else _SHORT_TMP
