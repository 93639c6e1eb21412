"""The last known fleet in a file: a gateway that is started anew routes at once, and asks the controller then."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from common.fleet import KEPT_FLEET_VARIABLE
from gateway.fleet.discovery import FleetWatch

_LOG = logging.getLogger("gateway.discovery")


class KeptFleetWatch:
    """FleetWatch that answers the first question from a file, and keeps each answer of the one behind it there.

    What the file says may be out of date: a replica that is gone by then fails before its first byte, and its requests
    go elsewhere, until the controller has answered.
    """

    def __init__(self, watch: FleetWatch, file: Path) -> None:
        self._watch = watch
        self._file = file
        self._kept = b""

    async def watch(self, version: int, timeout_s: float) -> bytes:
        """Raises FleetLost."""
        if version == 0 and not self._kept and self._file.exists():
            self._kept = self._file.read_bytes()
            return self._kept
        answer = await self._watch.watch(version, timeout_s)
        if answer != self._kept:
            self._keep(answer)
        return answer

    async def close(self) -> None:
        """Let go of the connection."""
        await self._watch.close()

    def _keep(self, answer: bytes) -> None:
        self._kept = answer
        part = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            part.write_bytes(answer)
            part.rename(self._file)
        except OSError as error:
            _LOG.warning("cannot keep the fleet in %s: %s", self._file, error)


def kept_by_parent(watch: FleetWatch, env: Mapping[str, str]) -> FleetWatch:
    """`watch`, with the file that our parent wants the fleet to be kept in, if it names one."""
    named = env.get(KEPT_FLEET_VARIABLE)
    return KeptFleetWatch(watch, Path(named)) if named else watch
