"""A Ray cluster of several nodes on this machine, each at a loopback address of its own, and `canopy` pointed at it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from deploy.environment import ray_environment
from deploy.guard import guarded
from tests.helpers.processes import assert_all_end, command_of, is_running, wait_until

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 240.0
ATTEMPTS = 3
HEAD_ADDRESS = "127.0.0.2"
_OBJECT_STORE_BYTES = 80 * 2**20
_STARTED = "Ray runtime started"
_FAST_HEALTH_CHECKS = {  # a dead node is noticed after two seconds instead of fifteen
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}


class RayMachine:
    """One node: `ray start` under a guard, so that all of it ends with this process."""

    def __init__(self, address: str, options: list[str], env: dict[str, str], log: Path) -> None:
        self.address = address
        self._log = log
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block", "--disable-usage-stats"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                guarded(command, remove=[]), stdin=subprocess.PIPE, stdout=output, stderr=output, env=env
            )

    def has_started(self) -> bool:
        """Wait until Ray says that it is part of the cluster; False if it gave up, which takes it 30 s."""
        wait_until(
            lambda: self.process.poll() is not None or _STARTED in self.said(), START_TIMEOUT_S, f"{self.address} runs"
        )
        return self.process.poll() is None

    def said(self) -> str:
        """The output of `ray start`."""
        return self._log.read_text()

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on it, the guard first."""
        guard = psutil.Process(self.process.pid)
        return [guard, *(p for p in guard.children(recursive=True) if is_running(p.pid))]

    def with_command(self, part: str) -> list[psutil.Process]:
        """Those whose command line holds `part`."""
        return [p for p in self.processes() if part in command_of(p.pid)]

    def power_off(self) -> None:
        """Every process of it is gone at once."""
        victims = self.processes()
        for process in victims:
            process.suspend()  # none may notice the death of another
        for process in victims:
            process.kill()
        assert_all_end([process.pid for process in victims[1:]], 10)
        self.end()

    def end(self) -> None:
        """End it in order, whatever state it is in."""
        assert self.process.stdin is not None
        self.process.stdin.close()  # the guard's lifeline
        self.process.wait(30)


class RayCluster:
    """A head with these options, and nodes that come and go. `directory` is short and private."""

    def __init__(self, directory: Path, *head: str) -> None:
        self.directory = directory
        token_file = directory / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32))
        cache = directory / "cache"
        self.env = {
            **os.environ,
            **ray_environment(token_file),
            **_FAST_HEALTH_CHECKS,
            "PYTHONPATH": str(ROOT),
            "CANOPY_CACHE": str(cache),
            "OMP_NUM_THREADS": "1",
        }
        self.machines: dict[str, RayMachine] = {}
        port_file = directory / "gcs"
        self.head = self._start(HEAD_ADDRESS, "--head", "--port=0", "--include-dashboard=false", *head)
        assert self.head.has_started(), self.head.said()
        wait_until(lambda: self._find_address(port_file), START_TIMEOUT_S, "the head runs")
        self.address = port_file.read_text()
        self.env["RAY_ADDRESS"] = self.address

    def add_node(self, address: str, *options: str) -> RayMachine:
        """Start a node, with 8 CPUs unless the options say otherwise, and wait until it is part of the cluster. On a
        busy machine Ray needs more than one attempt."""
        for _ in range(ATTEMPTS):
            machine = self._start(address, f"--address={self.address}", *(options or ("--num-cpus=8",)))
            if machine.has_started():
                return machine
            machine.end()
        raise AssertionError(machine.said())

    def canopy(self, *args: str, timeout_s: float = 500.0) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return self.python("-m", "deploy.cli", *args, timeout_s=timeout_s)

    def python(self, *args: str, timeout_s: float = 500.0) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments, as somebody on the head would."""
        return subprocess.run(
            [sys.executable, *args], env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=timeout_s
        )

    def write_fleet(self, description: dict[str, Any]) -> str:
        """The path of a fleet file with this content."""
        path = self.directory / "fleet.yaml"
        path.write_text(yaml.safe_dump(description))
        return str(path)

    def apply(self, description: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
        """`canopy serve --cluster` with this description."""
        return self.canopy("serve", "--cluster", self.write_fleet(description), *flags)

    def status(self) -> dict[str, Any]:
        """The fleet of `canopy status --json`."""
        done = self.canopy("status", "--json")
        assert done.returncode == 0, done.stderr
        (fleet,) = json.loads(done.stdout)
        return dict(fleet)

    def processes(self, part: str) -> list[psutil.Process]:
        """Those of all nodes whose command line holds `part`."""
        return [p for machine in self.machines.values() for p in machine.with_command(part)]

    def end(self) -> None:
        """End all nodes, the head last."""
        for machine in reversed(list(self.machines.values())):
            machine.end()

    def _start(self, address: str, *options: str) -> RayMachine:
        common = [
            f"--node-ip-address={address}",
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
            "--min-worker-port=0",  # any: nodes share this machine's ports
            "--max-worker-port=0",
        ]
        if "--head" in options:
            common.append(f"--temp-dir={self.directory / 'ray'}")
        log = self.directory / f"{address}.log"
        machine = self.machines[address] = RayMachine(address, [*options, *common], self.env, log)
        return machine

    def _find_address(self, port_file: Path) -> bool:
        """Where the head's GCS listens, from the command line of its raylet."""
        for raylet in self.head.with_command("/raylet "):
            for word in command_of(raylet.pid).split():
                if word.startswith("--gcs-address="):
                    port_file.write_text(word.partition("=")[2])
                    return True
        return False


@contextmanager
def ray_cluster(*nodes: str, head_cpus: int = 0, head_gpus: int = 0) -> Iterator[RayCluster]:
    """A cluster with nodes at these addresses; nothing of it is left afterwards. GPUs are numbers only."""
    directory = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
    cluster = RayCluster(directory, f"--num-cpus={head_cpus}", f"--num-gpus={head_gpus}")
    try:
        for address in nodes:
            cluster.add_node(address)
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(directory, ignore_errors=True)
