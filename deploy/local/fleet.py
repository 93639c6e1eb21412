"""`python -m deploy.local.fleet PLAN`: the process that runs one local fleet: Ray, the controller, the gateway.

It never cleans up after itself: however it ends, the guard above it ends everything below and removes its files.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec
import psutil

from common.clock import MonotonicClock
from common.errors import UserError
from common.fleet import FleetSnapshot
from deploy.fleet.description import FleetDescription
from deploy.fleet.messages import Answer, FleetStatus
from deploy.fleet.specs import Surroundings
from deploy.local.gateway_process import GatewayProcess
from deploy.local.plan import RunningFleet, ServePlan, write_private
from deploy.local.prepared import prepared
from deploy.local.progress import Progress
from deploy.local.ray_node import TOKEN_FILE, RayNode, start_ray
from deploy.model_source import PreparationError

_POLL_S = 0.25
_RPC_TIMEOUT_S = 30.0
_FIRST_CALL_TIMEOUT_S = 120.0  # Ray starts a process for the controller first
_DRAIN_MARGIN_S = 5.0  # beyond the gateway's own grace time


class FleetError(Exception):
    """The fleet did not come up or cannot go on, and not by the user's fault."""


class LocalFleet:
    """Starts the parts in order, waits until they serve, tends them, drains them."""

    def __init__(self, plan: ServePlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._run_dir = Path(plan.run_dir)
        self._wanted = sum(model.replicas.min for model in plan.fleet.models)
        self._controller: Any = None
        self._node: RayNode | None = None
        self._gateway: GatewayProcess | None = None
        self._stop_requested = False

    def start(self) -> None:
        """From nothing to a fleet that serves. Raises UserError or FleetError."""
        plan, progress = self._plan, self._progress
        os.environ["TMPDIR"] = str(self._run_dir)  # all temporary files of the fleet go with its directory
        models = tuple(prepared(model) for model in plan.fleet.models)
        progress.line("starting Ray")
        self._node = node = start_ray(self._run_dir)
        _exit_on_sigterm()  # Ray has put its own handler there
        from deploy.fleet.controller import start_controller

        self._controller = start_controller(plan.log_format)
        self._apply(msgspec.structs.replace(plan.fleet, models=models))
        self._announce(node)
        self._start_gateway(node)
        self._wait_until_ready()

    def run(self) -> None:
        """Tend the fleet until SIGTERM, then let running requests finish. Raises FleetError if Ray dies."""
        assert self._gateway is not None
        signal.signal(signal.SIGTERM, self._request_stop)
        version = 0
        while not self._stop_requested:
            snapshot = self._watch(version)
            version = snapshot.version
            self._progress.replicas(snapshot.replicas)
            if event := self._gateway.tend():
                self._progress.line(event)
            self._check_ray()
        grace_s = self._plan.shutdown_grace_s
        self._progress.line(f"stopping: running requests have {grace_s:g} s to finish; Ctrl-C again ends them")
        self._gateway.stop(grace_s + _DRAIN_MARGIN_S)

    def _apply(self, fleet: FleetDescription) -> None:
        """Raises UserError if this machine cannot hold it."""
        import ray

        around = Surroundings(
            command=self._plan.worker_command,
            log_dir=self._plan.log_dir,
            host="127.0.0.1",
            runs_gateway=False,
            cpu_threads=max(1, len(os.sched_getaffinity(0)) // self._wanted),
        )
        call = self._controller.apply.remote(msgspec.msgpack.encode(fleet), msgspec.msgpack.encode(around))
        answer = msgspec.msgpack.decode(ray.get(call, timeout=_FIRST_CALL_TIMEOUT_S), type=Answer)
        if answer.refusal:
            raise UserError(answer.refusal)

    def _announce(self, node: RayNode) -> None:
        """Let `canopy status` find us."""
        fleet = RunningFleet(
            model=", ".join(model.name for model in self._plan.fleet.models),
            url=self._plan.url,
            ray_address=node.address,
            token_file=str(self._run_dir / TOKEN_FILE),
            log_dir=self._plan.log_dir,
            pid=os.getpid(),
            started_s=psutil.Process().create_time(),
        )
        write_private(Path(self._plan.fleet_file), msgspec.json.encode(fleet))

    def _start_gateway(self, node: RayNode) -> None:
        self._gateway = GatewayProcess(
            {**self._plan.fleet.gateway, "ray_address": node.address},
            self._run_dir,
            Path(self._plan.log_dir) / "gateway.log",
            dict(os.environ),
            MonotonicClock(),
        )
        self._gateway.start()

    def _wait_until_ready(self) -> None:
        assert self._gateway is not None
        try:
            while True:
                self._check_ray()
                status = self._status()
                self._progress.replicas([r.record for r in status.replicas])
                self._check_start(status)
                ready = sum(r.record.state == "ready" for r in status.replicas)
                if ready == self._wanted and self._gateway.ready_workers() >= self._wanted:
                    return
                self._progress.waiting(f"{ready} of {self._wanted} replicas ready")
                time.sleep(_POLL_S)
        finally:
            self._progress.done_waiting()

    def _check_ray(self) -> None:
        assert self._node is not None
        if name := self._node.lost_process():
            raise FleetError(f"Ray's {name} has ended, so no replica could be restarted; the fleet ends.")

    def _check_start(self, status: FleetStatus) -> None:
        """Raise if waiting longer is pointless."""
        assert self._gateway is not None
        if (code := self._gateway.exit_code()) is not None:
            words = self._gateway.last_words()
            raise UserError(words) if code == 2 else FleetError(f"the gateway ended: {words}")
        for replica in status.replicas:
            last = replica.log_tail[-1] if replica.log_tail else replica.record.message
            if replica.is_given_up:
                raise UserError(last)
            if replica.is_crash_looping:
                lines = "\n".join(f"  {line}" for line in replica.log_tail)
                raise FleetError(
                    f"{replica.record.replica_id} does not start: {replica.record.message}.\n"
                    f"The last lines of {replica.log_path}:\n{lines}"
                )

    def _status(self) -> FleetStatus:
        import ray

        answer = ray.get(self._controller.status.remote(), timeout=_RPC_TIMEOUT_S)
        return msgspec.msgpack.decode(answer, type=FleetStatus)

    def _watch(self, version: int) -> FleetSnapshot:
        """Returns within a second, so that signals and the gateway are looked after."""
        import ray

        try:
            answer = ray.get(self._controller.watch.remote(version, 1.0), timeout=_RPC_TIMEOUT_S)
        except ray.exceptions.RayError:  # Ray restarts the controller
            time.sleep(_POLL_S)
            return FleetSnapshot(version=version, replicas=[])
        return msgspec.msgpack.decode(answer, type=FleetSnapshot)

    def _request_stop(self, number: int, frame: object) -> None:
        self._stop_requested = True


def _exit_on_sigterm() -> None:
    """While starting there is nothing to drain; the guard ends what we started."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))


def _ray_messages(plan: ServePlan) -> TextIO:
    """Where Ray tells of every dead actor, in many lines; it writes to whatever sys.stderr is."""
    path = Path(plan.log_dir) / "ray.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", buffering=1)


def main(plan_file: Path) -> int:
    """Run the fleet of a plan. Returns the exit code."""
    _exit_on_sigterm()
    plan = msgspec.json.decode(plan_file.read_bytes(), type=ServePlan)
    errors = sys.stderr
    sys.stderr = _ray_messages(plan)
    progress = Progress(MonotonicClock(), log_format=plan.log_format)
    fleet = LocalFleet(plan, progress)
    try:
        fleet.start()
        progress.invitation(plan.url, plan.model, plan.log_dir, needs_key=plan.needs_key)
        fleet.run()
    except PreparationError as error:
        return error.exit_code
    except UserError as error:
        print(error if str(error).startswith("canopy") else f"canopy: {error}", file=errors)
        return 2
    except (FleetError, TimeoutError) as error:  # Ray's own are TimeoutErrors too
        print(f"canopy: {error}", file=errors)
        return 1
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # no orderly end of Ray: the guard kills it anyway
