"""One life of one worker as an operating-system process: start, wait until ready, notice its end, keep its last words.

Knows no Ray; deploy/fleet/replica.py is the actor around it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import yaml

from common.errors import UserError
from common.logs import headline, is_headline
from deploy.environment import without_settings
from deploy.fleet.messages import Ending, Life, Ready, ReplicaSpec
from deploy.fleet.roster import log_path
from deploy.fleet.state import EXIT_USER_FAULT
from deploy.guard import guarded
from deploy.model_source import PreparationError, find_model, prepare
from deploy.processes import become_subreaper, end_descendants

_POLL_S = 0.05
_SCHEDULER_GRACE_S = 0.7  # for a frontend that ends its streams and itself, with a better reason than ours
_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 64 * 1024


class WorkerProcess:
    """Runs the spec's command under a guard. Owner of the process tree, its work directory and its log file."""

    def __init__(self, spec: ReplicaSpec, life: Life, node: str) -> None:
        self._spec = spec
        self._life = life
        self._node = node
        self._log = Path(log_path(spec.log_dir, life.replica_id))
        self._guard: subprocess.Popen[bytes] | None = None
        self._reason: str | None = None  # why we ended it ourselves
        self._outcome: asyncio.Future[Ready | Ending] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_alive(self) -> bool:
        """Whether the tree has not ended yet."""
        return not self._ending.done()

    async def start(self) -> None:
        """Prepare the model and start the process tree; a fault is an Ending."""
        try:
            model_path = await asyncio.to_thread(self._prepare)
        except (UserError, PreparationError, OSError) as fault:
            self._finish(Ending(reason=str(fault), code=_code_of(fault), log_tail=[str(fault)]))
            return
        grace = {"shutdown_grace_s": self._spec.drain_timeout_s}  # unless the settings say otherwise
        self._start_tree({**grace, **self._spec.settings, **model_path, "host": self._spec.host or self._node})

    def _prepare(self) -> dict[str, str]:
        """Blocking: the directory that this node makes of the model, where the settings do not name one."""
        if not self._spec.source:
            return {}
        return {"model_path": prepare(find_model(self._spec.source))}

    def _start_tree(self, settings: dict[str, Any]) -> None:
        become_subreaper()
        work_dir = Path(tempfile.mkdtemp(prefix="canopy-"))
        ready_file = work_dir / "ready.json"
        settings_file = work_dir / "worker.yaml"
        settings_file.touch(mode=0o600)
        settings_file.write_text(yaml.safe_dump(settings))
        self._guard = self._start_guard(work_dir, ["--config", str(settings_file), "--ready-file", str(ready_file)])
        self._tasks = [
            asyncio.create_task(self._wait_for_ready(ready_file)),
            asyncio.create_task(self._wait_for_end(self._guard, work_dir)),
        ]

    async def ready(self) -> Ready | Ending:
        """Wait until the worker serves or has ended."""
        return await asyncio.shield(self._outcome)

    async def ended(self) -> Ending:
        """Wait until the whole tree has ended."""
        return await asyncio.shield(self._ending)

    async def stop(self, grace_s: float) -> None:
        """Ask the worker to finish its requests; kill it after `grace_s`. Returns when it has ended."""
        self._end(signal.SIGTERM, "stopped")
        try:
            await asyncio.wait_for(self.ended(), grace_s)
        except TimeoutError:
            self._end(signal.SIGKILL, f"killed, because it did not stop within {grace_s:.0f} s")
            await self.ended()

    def end(self, reason: str) -> None:
        """End it at once."""
        self._end(signal.SIGKILL, reason)

    def _end(self, number: int, reason: str) -> None:
        if self._guard is not None and self.is_alive:
            self._reason = self._reason or reason
            self._guard.send_signal(number)

    async def _wait_for_ready(self, ready_file: Path) -> None:
        while not ready_file.exists():  # it appears whole, by a rename
            await asyncio.sleep(_POLL_S)
        ready = msgspec.json.decode(ready_file.read_bytes(), type=_ReadyFile)
        if not self._outcome.done():
            self._outcome.set_result(ready.with_node(self._node))
        await self._watch_scheduler(ready.scheduler_pid)

    async def _watch_scheduler(self, pid: int) -> None:
        """End the tree as soon as the engine's process dies, whatever the frontend makes of it."""
        await _end_of(pid)
        await asyncio.sleep(_SCHEDULER_GRACE_S)
        self._end(signal.SIGKILL, f"its scheduler process {pid} died")

    async def _wait_for_end(self, guard: subprocess.Popen[bytes], work_dir: Path) -> None:
        await _end_of(guard.pid)
        with guard:  # closes its lifeline
            code = guard.wait()
        self._tasks[0].cancel()
        await asyncio.to_thread(end_descendants, 0)  # a killed guard leaves its tree to us
        shutil.rmtree(work_dir, ignore_errors=True)
        self._finish(Ending(reason=self._reason or _reason(code), code=code, log_tail=tail(self._log)))

    def _finish(self, ending: Ending) -> None:
        self._ending.set_result(ending)
        if not self._outcome.done():
            self._outcome.set_result(ending)

    def _start_guard(self, work_dir: Path, options: list[str]) -> subprocess.Popen[bytes]:
        command = [*self._spec.command, *options, "--incarnation", self._life.incarnation]
        with self._open_log() as log:
            return subprocess.Popen(
                guarded(command, remove=[work_dir]),
                stdin=subprocess.PIPE,  # the guard's lifeline: it ends with this process
                stdout=log,
                stderr=log,
                cwd=work_dir,
                env=_worker_environment(work_dir),
                start_new_session=True,
            )

    def _open_log(self) -> BinaryIO:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        log = self._log.open("ab" if self._life.restarts else "wb")  # one file holds one fleet's lives
        text = f"{self._life.replica_id} life {self._life.incarnation}"
        log.write(f"{headline(text, self._spec.settings.get('log_format', 'text'))}\n".encode())
        log.flush()
        return log


class _ReadyFile(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's ready file; further keys are allowed."""

    url: str
    pid: int
    scheduler_pid: int
    incarnation: str
    model: str
    max_total_num_tokens: int
    max_running_requests: int

    def with_node(self, node: str) -> Ready:
        return Ready(**msgspec.structs.asdict(self), node=node)


async def _end_of(pid: int) -> None:
    """Wait until a process, anybody's child, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def tail(path: Path) -> list[str]:
    """The last lines of a worker's log, of its latest life only."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
        lines = deque(log.read().decode(errors="replace").splitlines(), maxlen=_LOG_TAIL_LINES)
    kept: list[str] = []
    for line in reversed(lines):
        if is_headline(line):
            break
        kept.append(line)
    return kept[::-1]


def _code_of(fault: Exception) -> int:
    """The code with which a worker says the same."""
    return fault.exit_code if isinstance(fault, PreparationError) else EXIT_USER_FAULT


def _reason(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number > 0:
        return f"its worker was killed by signal {number}"
    return f"its worker exited with code {code}"


def _worker_environment(work_dir: Path) -> dict[str, str]:
    """Ours without what the settings file already decided and what Ray set for its own processes."""
    env = {k: v for k, v in without_settings(os.environ).items() if not k.startswith("RAY_")}
    for name in ("OMP_NUM_THREADS", "PYTHONBREAKPOINT"):
        env.pop(name, None)
    return {**env, "TMPDIR": str(work_dir), "PYTHONUNBUFFERED": "1"}
