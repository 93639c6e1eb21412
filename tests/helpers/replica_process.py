"""`python -m worker` as a real process, with its log in a file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import psutil

from tests.helpers.processes import assert_all_end, wait_until

START_TIMEOUT_S = 120


class ReplicaProcess:
    """A replica that was started and may be loading still. `folder` takes its files."""

    def __init__(self, model: Path | str, folder: Path, *flags: str, wait: bool = True, module: str = "worker") -> None:
        self.log_file = folder / "replica.log"
        self.ready_file = folder / "ready.json"
        self.temporary = Path(tempfile.mkdtemp(prefix="replica-"))  # a short path: sockets lie below it
        command = [sys.executable, "-m", module, "--model-path", str(model), "--port", "0", "--cpu-threads", "1"]
        command += ["--ready-file", str(self.ready_file), *flags]
        env = os.environ | {"TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        self.info: dict[str, object] = {}
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait for the ready file; fails with the log if the process ends instead."""
        wait_until(lambda: self.ready_file.exists() or self.process.poll() is not None, START_TIMEOUT_S, "ready")
        assert self.process.poll() is None, self.log
        self.info = orjson.loads(self.ready_file.read_bytes())

    @property
    def log(self) -> str:
        """Everything it has written."""
        return self.log_file.read_text()

    @property
    def url(self) -> str:
        """Where it serves."""
        return str(self.info["url"])

    @property
    def scheduler_pid(self) -> int:
        """Its scheduler's process id."""
        return int(str(self.info["scheduler_pid"]))

    def tree(self) -> list[int]:
        """The process and everything below it."""
        try:
            return [self.process.pid, *(p.pid for p in psutil.Process(self.process.pid).children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: signal.Signals) -> None:
        """Send the frontend a signal."""
        self.process.send_signal(number)

    def exit_code(self, timeout_s: float = 20) -> int:
        """Wait for its end."""
        return self.process.wait(timeout_s)

    def load(self) -> dict[str, int]:
        """What /v1/loads says of its only rank."""
        return dict(httpx.get(f"{self.url}/v1/loads", timeout=10).json()["loads"][0])

    def is_clean(self) -> bool:
        """Nothing runs, nothing waits, and no KV page is used or lost."""
        load = self.load()
        return (
            load["num_running_reqs"] == load["num_waiting_reqs"] == load["num_used_tokens"] == 0
            and load["num_free_tokens"] + load["num_evictable_tokens"] == load["max_total_num_tokens"]
        )


@contextmanager
def replica(
    model: Path | str, folder: Path, *flags: str, wait: bool = True, module: str = "worker"
) -> Iterator[ReplicaProcess]:
    """A replica that is surely gone afterwards, with all its processes and temporary files. `module` runs it."""
    running = ReplicaProcess(model, folder, *flags, wait=False, module=module)
    seen: set[int] = set()
    try:
        if wait:
            running.wait_ready()
        seen = set(running.tree())
        yield running
    finally:
        seen |= set(running.tree())
        if running.process.poll() is None:
            running.signal(signal.SIGTERM)
            try:
                running.exit_code()
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
        assert_all_end(seen, 5)
        left = list(running.temporary.glob("canopy*"))
        shutil.rmtree(running.temporary)
        assert left == []
