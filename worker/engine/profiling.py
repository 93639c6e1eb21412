"""The seam between the scheduler and whatever records profiles. No torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from worker.ipc.messages import StartProfile


class ProfileFault(Exception):
    """A profile cannot be recorded or written, for the reason given. `param`: the field at fault; `status` of the HTTP
    answer: 500 where nothing that was asked for is at fault."""

    def __init__(self, text: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(text)
        self.param = param
        self.status = status


class Profiler(Protocol):
    """What records. All calls come from the thread that launches steps."""

    def start(self, asked: StartProfile) -> None:
        """Record from now on. Raises ProfileFault."""
        ...

    def range(self, name: str) -> AbstractContextManager[object]:
        """A named part of the record."""
        ...

    def stop(self, path: Path) -> None:
        """Record no more, and write what there is as a Chrome trace. Raises ProfileFault."""
        ...
