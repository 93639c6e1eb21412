"""`python -m deploy.clusters.workers BOOTSTRAP_CONFIG`: keeps the workers of a cluster of one's own machines in it.

It runs on the head. Ray's own autoscaler can start such workers too, but one whose start failed is never tried again
(version 1), or the head is counted among them and one that rebooted stays out (version 2). This does what that does,
with the same file: copy ~/canopy, run the setup commands, run the start commands; again for every worker whose Ray has
ended, until told to stop. Then it stops them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from common import logs
from common.errors import UserError

_CHECK_S = 10.0
_STEP_TIMEOUT_S = 1800.0  # packages may have to be installed
_CHECK_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 30.0
_MOUNTS = "~/canopy/"
_LOG = logging.getLogger("canopy.workers")

Run = Callable[[Sequence[str], float], Awaitable[tuple[int, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersPlan:
    """Who the workers are and what to run there, as in the cluster file."""

    head: str
    addresses: tuple[str, ...]
    user: str
    key: str
    setup: tuple[str, ...]
    start: tuple[str, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], head: str, key: str) -> WorkersPlan:
        """From the configuration that `ray up` left on the head. Raises UserError."""
        elsewhere = [path for path in config.get("file_mounts", {}) if not path.startswith(_MOUNTS)]
        if elsewhere:
            raise UserError(f"file_mounts has {elsewhere[0]}, which workers would not get; put it below {_MOUNTS}.")
        return cls(
            head=head,
            addresses=tuple(config["provider"].get("worker_ips", [])),
            user=config["auth"]["ssh_user"],
            key=key,
            setup=tuple(config.get("setup_commands", [])) + tuple(config.get("worker_setup_commands", [])),
            start=tuple(config.get("worker_start_ray_commands", [])),
        )


class WorkersKeeper:
    """Owner of the workers: each is joined, watched, joined again, and stopped at the end."""

    def __init__(self, plan: WorkersPlan, run: Run, check_s: float = _CHECK_S) -> None:
        self._plan = plan
        self._run = run
        self._check_s = check_s

    async def keep(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; returns when all workers have been told to end."""
        keepers = [asyncio.create_task(self._keep_one(address)) for address in self._plan.addresses]
        await stop.wait()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(self._stop_one(address) for address in self._plan.addresses))

    async def _keep_one(self, address: str) -> None:
        """A worker that runs already belongs to an earlier life of the head, so it is begun anew too."""
        while True:
            if fault := await self._join(address):
                _LOG.warning("%s does not join: %s", address, fault)
            else:
                _LOG.info("%s has joined", address)
                while await self._is_active(address):
                    await asyncio.sleep(self._check_s)
                _LOG.warning("%s has left", address)
            # Not all at once: they may share what they failed for.
            await asyncio.sleep(self._check_s * (1 + random.random()))

    async def _join(self, address: str) -> str:
        """Returns what went wrong, or nothing."""
        head = f"export RAY_HEAD_IP={shlex.quote(self._plan.head)}"
        steps = {
            "copying ~/canopy": self._copy(address),
            **{command: self._on(address, command) for command in self._plan.setup},
            **{command: self._on(address, f"{head}; {command}") for command in self._plan.start},
        }
        for name, step in steps.items():
            code, output = await self._run(step, _STEP_TIMEOUT_S)
            if code != 0:
                last = output.strip().splitlines()[-1:] or ["(no output)"]
                return f"{name} ended with code {code}: {last[0]}"
        return ""

    async def _is_active(self, address: str) -> bool:
        code, _ = await self._run(self._on(address, f"systemctl is-active --quiet {self._unit}"), _CHECK_TIMEOUT_S)
        return code == 0

    async def _stop_one(self, address: str) -> None:
        code, output = await self._run(self._on(address, f"sudo systemctl stop {self._unit}"), _STOP_TIMEOUT_S)
        if code != 0:
            _LOG.warning("%s could not be stopped: %s", address, output.strip())

    @property
    def _unit(self) -> str:
        return f"canopy-worker@{self._plan.user}"

    @property
    def _ssh(self) -> list[str]:
        options = ("BatchMode=yes", "ConnectTimeout=5", "IdentitiesOnly=yes", "StrictHostKeyChecking=accept-new")
        return ["ssh", "-i", self._plan.key, *(word for option in options for word in ("-o", option))]

    def _copy(self, address: str) -> list[str]:
        source, target = f"{Path.home()}/canopy/", f"{self._plan.user}@{address}:canopy/"
        return ["rsync", "--archive", "--delete", f"--rsh={shlex.join(self._ssh)}", source, target]

    def _on(self, address: str, command: str) -> list[str]:
        return [*self._ssh, f"{self._plan.user}@{address}", f"bash --login -c {shlex.quote(command)}"]


async def run_command(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Exit code and output of a process; 124 if it had to be ended after `timeout_s`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        return 124, f"not done after {timeout_s:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


async def _keep(plan: WorkersPlan) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await WorkersKeeper(plan, run_command).keep(stop)


def main(config: Path) -> int:
    """Keep the workers of the cluster of `config`. Returns the exit code."""
    logs.setup("info", "text", process="workers")
    try:
        plan = WorkersPlan.read(
            yaml.safe_load(config.read_text()),
            os.environ["RAY_NODE_IP"],
            str(config.with_name("ray_bootstrap_key.pem")),
        )
    except UserError as error:
        print(f"canopy: {error}", file=sys.stderr)
        return 2
    asyncio.run(_keep(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).expanduser()))
