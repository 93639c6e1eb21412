"""What the launcher decided, handed to the process that runs the fleet, and what `canopy status` reads of it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil

from common.logs import LogFormat
from deploy.fleet.description import FleetDescription


class ServePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one local fleet that is known before it starts."""

    fleet: FleetDescription  # its gateway has a port
    url: str  # of the gateway, as seen from this machine
    shutdown_grace_s: float
    worker_command: list[str]
    run_dir: str  # private, short, removed at the end
    log_dir: str
    fleet_file: str  # where `canopy status` finds us

    @property
    def model(self) -> str:
        """The name clients use, of the first model."""
        return self.fleet.models[0].name

    @property
    def log_format(self) -> LogFormat:
        """Of every process."""
        return "json" if self.fleet.gateway.get("log_format") == "json" else "text"

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key."""
        return bool({"api_key", "api_key_file"} & self.fleet.gateway.keys())

    @property
    def token_file(self) -> Path:
        """The secret of this fleet's Ray."""
        return Path(self.run_dir) / "ray-token"


class RunningFleet(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a fleet file. It is stale if that process is gone."""

    model: str  # names of its models
    url: str
    ray_address: str
    token_file: str
    log_dir: str
    pid: int
    started_s: float  # of that process, seconds since the epoch

    @classmethod
    def elsewhere(cls, ray_address: str) -> RunningFleet:
        """A fleet of which only the Ray address is known."""
        return cls(model="", url="", ray_address=ray_address, token_file="", log_dir="", pid=0, started_s=0.0)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    part = path.with_name(path.name + ".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    part.rename(path)


def fleets_dir(cache_root: Path) -> Path:
    """Where fleet files are."""
    return cache_root / "fleets"


def running_fleets(cache_root: Path) -> list[RunningFleet]:
    """Local fleets whose process still runs. Removes the files of those that were killed."""
    found: list[RunningFleet] = []
    for path in sorted(fleets_dir(cache_root).glob("*.json")):
        fleet = msgspec.json.decode(path.read_bytes(), type=RunningFleet)
        if _is_running(fleet):
            found.append(fleet)
        else:
            path.unlink(missing_ok=True)
    return found


def _is_running(fleet: RunningFleet) -> bool:
    try:
        return bool(abs(psutil.Process(fleet.pid).create_time() - fleet.started_s) < 1)
    except psutil.NoSuchProcess:
        return False
