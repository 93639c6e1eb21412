"""What applying a fleet description changes: a pure comparison of what is wanted now with what was wanted before."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.fleet.description import FleetDescription, ModelDescription, ReplicaBounds
from deploy.fleet.kept import FleetState, GroupState
from deploy.fleet.messages import ReplicaSpec


class Kind(enum.Enum):
    """What happens to a model, or to the gateway."""

    START = "start"
    STOP = "stop"  # after draining
    ROLL = "roll"  # one replica at a time
    SCALE = "scale"
    KEEP = "keep"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference, and its line for people. `model` is empty for the gateway."""

    kind: Kind
    model: str
    text: str


def changes_between(
    before: FleetState | None, wanted: FleetDescription, specs: Mapping[str, ReplicaSpec]
) -> list[Change]:
    """In the order of `wanted`, then what leaves; `specs` of the wanted models by name. A model that stays as it is
    has one KEEP; one may have ROLL and SCALE."""
    groups = before.groups if before is not None else {}
    here = {name for name in groups if before is not None and before.description.model(name) is not None}
    changes: list[Change] = []
    for model in wanted.models:
        if model.name in here:
            changes += _of_model(groups[model.name], model, specs[model.name].version)
        else:
            count = model.replicas.min
            changes.append(Change(kind=Kind.START, model=model.name, text=f"{model.name}: start {_replicas(count)}"))
    for name in sorted(here - {model.name for model in wanted.models}):
        text = f"{name}: drain and stop {_replicas(groups[name].wanted)}"
        changes.append(Change(kind=Kind.STOP, model=name, text=text))
    if before is not None and before.description.gateway != wanted.gateway:
        changes.append(Change(kind=Kind.GATEWAY, model="", text="gateway: new settings"))
    return changes


def within(bounds: ReplicaBounds, wanted: int) -> int:
    """The number of replicas nearest to `wanted` that the bounds allow."""
    return min(max(wanted, bounds.min), bounds.max)


def _of_model(group: GroupState, model: ModelDescription, version: str) -> list[Change]:
    changes: list[Change] = []
    if group.held is not None and group.held.version == version:
        text = f"{model.name}: try version {version} again, one replica at a time"
        changes.append(Change(kind=Kind.ROLL, model=model.name, text=text))
    elif group.target != version:
        text = f"{model.name}: roll {group.target} -> {version}, one replica at a time"
        changes.append(Change(kind=Kind.ROLL, model=model.name, text=text))
    if (count := within(model.replicas, group.wanted)) != group.wanted:
        text = f"{model.name}: scale {group.wanted} -> {count}"
        changes.append(Change(kind=Kind.SCALE, model=model.name, text=text))
    if not changes:
        text = f"{model.name}: keep {_replicas(group.wanted)}"
        changes.append(Change(kind=Kind.KEEP, model=model.name, text=text))
    return changes


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"
