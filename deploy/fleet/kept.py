"""What of a fleet outlives its controller: the description that was applied, and how far each model got with it.

Pure data; the controller keeps it in Ray's own key-value store (deploy/fleet/controller.py).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from deploy.fleet.description import FleetDescription
from deploy.fleet.messages import ReplicaSpec
from deploy.fleet.specs import Surroundings


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An update that was given up, and the last words of the replica that could not start."""

    version: str
    reason: str
    log_tail: list[str]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One replica with other settings, the canary of an experiment, beside the wanted ones or `instead` of one. With a
    `fault` it has ended by itself, and the experiment is over."""

    version: str
    owner: str  # who experiments
    instead: bool = False
    fault: Held | None = None


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """What of a group must outlive the controller. `specs` by version: those wanted, and those gone back to."""

    wanted: int
    target: str  # version that all replicas should have
    specs: dict[str, ReplicaSpec]
    fallback: str = ""  # version that worked before, empty if none has
    held: Held | None = None
    trial: Trial | None = None


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """What of a fleet must outlive its controller. Groups by model name; those without a description are leaving."""

    description: FleetDescription
    around: Surroundings
    groups: dict[str, GroupState]


class Store(Protocol):
    """Keeps one FleetState."""

    def load(self) -> FleetState | None:
        """What was saved last; None if nothing was."""
        ...

    def save(self, state: FleetState) -> None:
        """Keep it."""
        ...
