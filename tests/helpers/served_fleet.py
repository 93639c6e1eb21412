"""A fleet started the way users do, `canopy serve` in a process of its own, for tests of the whole."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from common.process import die_with_parent
from tests.helpers.processes import assert_all_end, command_of, is_running, wait_until

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0

# `canopy serve` with the stand-in worker in place of `python -m worker`
_STAND_IN_SERVE = """
import os, sys
from common.errors import UserError
from deploy.local.launcher import serve
command = [sys.executable, "-m", "tests.helpers.stand_in_worker"]
try:
    sys.exit(serve(sys.argv[1:], os.environ, worker_command=command))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """Processes of a running fleet, found from the launcher's pid: nothing is looked up by name alone."""

    processes: list[psutil.Process]

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self.processes]

    def with_command(self, part: str) -> list[psutil.Process]:
        """Those whose command line holds `part`."""
        return [p for p in self.processes if part in command_of(p.pid)]


class ServedFleet:
    """One `canopy serve`. Its output is kept; `stop` checks that nothing of it is left."""

    def __init__(self, *args: str, cache: Path, stand_in: bool = False) -> None:
        command = [sys.executable, "-c", _STAND_IN_SERVE] if stand_in else [sys.executable, "-m", "deploy.cli", "serve"]
        env = {**os.environ, "CANOPY_CACHE": str(cache), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.env = env
        self.output: list[str] = []
        self.process = subprocess.Popen(
            [*command, *args],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=partial(die_with_parent, os.getpid()),  # a killed test run leaves no fleet behind
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = ""

    @property
    def text(self) -> str:
        """Everything it has printed so far."""
        return "".join(self.output)

    def wait_until_serving(self) -> None:
        """Wait for the address to be printed. Fails with the output if the launcher ends before."""

        def serves() -> bool:
            assert self.process.poll() is None, self.text
            return "Stop: Ctrl-C" in self.text

        wait_until(serves, START_TIMEOUT_S, "the fleet serves")
        found = re.search(r"Serving \S+ at (\S+) after", self.text)
        assert found
        self.url = found[1]

    def tree(self) -> Tree:
        """The launcher and everything below it."""
        launcher = psutil.Process(self.process.pid)
        below = [p for p in launcher.children(recursive=True) if is_running(p.pid)]
        return Tree([launcher, *below])

    def run_status(self, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `canopy status`, with variables changed."""
        command = [sys.executable, "-m", "deploy.cli", "status", *flags]
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=60)

    def status(self) -> list[dict[str, Any]]:
        """The replicas of `canopy status --json`."""
        done = self.run_status("--json")
        assert done.returncode == 0, done.stderr
        (fleet,) = json.loads(done.stdout)
        return list(fleet["replicas"])

    def end(self, number: int = signal.SIGINT) -> int:
        """Signal the launcher alone; check that all processes and files go. Returns its exit code."""
        tree = self.tree()
        run_dirs = {p.cwd() for p in tree.with_command("deploy.local.fleet")}
        self.process.send_signal(number)
        code = self.wait()
        assert_all_end(tree.pids, STOP_TIMEOUT_S)
        for run_dir in run_dirs:
            wait_until(lambda d=run_dir: not Path(d).exists(), 5, f"{run_dir} is removed")  # type: ignore[misc]
        return code

    def kill(self) -> None:
        """End it whatever state it is in; for the end of a test, failed or not."""
        for _ in range(2):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> int:
        """Wait for the launcher's end."""
        code = self.process.wait(START_TIMEOUT_S)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
