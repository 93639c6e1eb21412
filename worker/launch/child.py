"""The frontend's hold on its scheduler process: start it, notice its end at once, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from worker.config import WorkerSettings

_MODULE = "worker.launch.scheduler_process"

EXIT_USER_FAULT = 2
EXIT_FAILED = 3
REPORTED = (EXIT_USER_FAULT, EXIT_FAILED)  # a scheduler that exits with these has sent a SchedulerFailed before


class SchedulerProcess:
    """A running scheduler. `start` makes it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, settings: WorkerSettings, ipc_directory: Path) -> SchedulerProcess:
        """Run this in the main thread: the kernel kills the scheduler when the thread that started it ends."""
        command = [sys.executable, "-m", _MODULE, str(ipc_directory), str(os.getpid())]
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(settings.model_dump_json().encode())
        process.stdin.close()
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end; the exit code, or minus the number of the signal that killed it."""
        return await self._process.wait()

    async def end(self, patience_s: float) -> None:
        """Wait for its end, but no longer than `patience_s`: then kill it."""
        try:
            await asyncio.wait_for(self.ended(), patience_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself this very moment
                self._process.kill()
            await self.ended()


def how_it_ended(code: int) -> str:
    """One sentence for people."""
    if code < 0:
        return f"The scheduler process was killed by {signal.Signals(-code).name}."
    return f"The scheduler process ended with exit code {code}; the log above says why."
