"""How many workers of one node start at a time: as many as it has cores.

A worker that starts takes whole cores for seconds. Dozens that start together on a small machine keep Ray's own
processes from answering, and Ray then takes the node for dead.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

_POLL_S = 0.5  # dozens may wait


class StartSlots:
    """Locks on files, one for each worker that may start: a process that dies gives its own back."""

    def __init__(self, folder: Path, count: int) -> None:
        self._files = [folder / f"start-{index}.lock" for index in range(count)]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @classmethod
    def of_node(cls, address: str) -> StartSlots:
        """Those that all workers of this user on a node share."""
        folder = Path(tempfile.gettempdir()) / f"canopy-starts-{os.getuid()}-{address}"
        return cls(folder, max(2, os.cpu_count() or 1))

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a turn and keep it meanwhile. Raises OSError where no lock file can be made."""
        while (held := self._take()) is None:
            await asyncio.sleep(_POLL_S)
        with held:
            yield

    def _take(self) -> BinaryIO | None:
        for path in self._files:
            file = path.open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                return file
        return None
