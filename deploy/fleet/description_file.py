"""Reads a fleet description from its YAML file. Every fault is one sentence that names the file and the place in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from common.errors import UserError
from common.settings import Settings, validated
from common.settings.sentences import did_you_mean
from common.settings.yaml_file import read_mapping, values_of
from deploy.fleet.description import FleetDescription, ModelDescription, Part
from deploy.serve_settings import DECIDED_FOR_GATEWAY, DECIDED_FOR_WORKERS, from_anywhere, with_events_for
from gateway.config import GatewaySettings
from worker.config import WorkerSettings

_SAID = "--cluster"
_AT = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPES = {"object": "a mapping", "array": "a list", "int": "a whole number", "float": "a number", "str": "text"}

P = TypeVar("P", bound=Part)


def read_fleet(path: str) -> FleetDescription:
    """The description in the YAML file at `path`. Raises UserError."""
    if not path:
        raise UserError(f"{_SAID} must not be empty; name a YAML file.")
    return fleet_of(read_mapping(path, _SAID), path)


def fleet_of(items: list[tuple[str, Any]], place: str) -> FleetDescription:
    """The description in a mapping that stands at `place`. Raises UserError."""
    root = dict(items)
    if len(root) < len(items):
        double = next(key for key, _ in items if [k for k, _ in items].count(key) > 1)
        raise UserError(f"{place} sets {double} twice; keep one of the two.")
    gateway = root.get("gateway") or {}
    if not isinstance(gateway, dict):
        raise UserError(f"{place}: gateway must be a mapping of gateway flags.")
    gateway = _settings(gateway, GatewaySettings, DECIDED_FOR_GATEWAY, f"{place}: gateway")
    models = root.get("models") or []
    if models == []:
        raise UserError(f"{place} has no models; list at least one under `models:`.")
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise UserError(f"{place}: models must be a list of mappings, each with name, model and replicas.")
    described = tuple(_model(model, gateway, place) for model in models)
    return _converted({**root, "models": described, "gateway": gateway}, FleetDescription, place)


def _model(model: Mapping[str, Any], gateway: Mapping[str, Any], place: str) -> ModelDescription:
    here = f"{place}: model {model['name']}" if "name" in model else f"{place}: a model"
    replicas = model.get("replicas", 1)
    if isinstance(replicas, int) and not isinstance(replicas, bool):
        replicas = {"min": replicas, "max": replicas}
    engine = model.get("engine") or {}
    if not isinstance(engine, dict):
        raise UserError(f"{here}: engine must be a mapping of worker flags.")
    paths = {"model": _absolute(model["model"])} if isinstance(model.get("model"), str) else {}
    described = {
        **model,
        **paths,
        "replicas": replicas,
        "engine": with_events_for(_settings(engine, WorkerSettings, DECIDED_FOR_WORKERS, f"{here}: engine"), gateway),
    }
    return _converted(described, ModelDescription, here)


def _absolute(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _settings(items: Mapping[str, Any], cls: type[Settings], decided: frozenset[str], place: str) -> dict[str, Any]:
    """Values by field name, checked by the program's own settings tree."""
    found = values_of([(str(key), value) for key, value in items.items()], cls, place)
    for name in found.values:
        if name in decided:
            raise UserError(f"{found.called[name]} is decided by the fleet; leave it out.")
    required = {"model_path": "demo"} if cls is WorkerSettings else {}
    validated(cls, {**found.values, **required}, found.called)
    return {name: from_anywhere(name, value) for name, value in found.values.items()}


def _converted(values: Any, cls: type[P], place: str) -> P:
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        raise UserError(_sentence(str(error), cls, place)) from None


def _sentence(text: str, cls: type[Part], place: str) -> str:
    where = _AT.search(text)
    fault, inside = _AT.sub("", text), where[1] if where else ""
    if unknown := _UNKNOWN.fullmatch(fault):
        known = msgspec.structs.fields(_part_at(cls, inside))
        names = [field.name for field in known]
        hint = did_you_mean(unknown[1], names) or f"; there are {', '.join(names)}."
        return f"{_joined(place, inside)} has the unknown key {unknown[1]!r}{hint}"
    if missing := _MISSING.fullmatch(fault):
        return f"{_joined(place, inside)} needs the key {missing[1]}."
    if fault.startswith("Expected "):
        return f"{_joined(place, inside)} must be {_words(fault.removeprefix('Expected '))}."
    return f"{_joined(place, inside)}: {fault}."


def _words(types: str) -> str:
    for name, word in _TYPES.items():
        types = types.replace(f"`{name}`", word)
    return types.replace("`", "")


def _joined(place: str, inside: str) -> str:
    return f"{place}: {inside}" if inside else place


def _part_at(cls: type[Part], inside: str) -> type[Part]:
    """The class of the part at a dotted place, `replicas` for example."""
    for name in filter(None, inside.split(".")):
        declared = next(field.type for field in msgspec.structs.fields(cls) if field.name == name)
        options = getattr(declared, "__args__", (declared,))
        cls = next(option for option in options if isinstance(option, type) and issubclass(option, Part))
    return cls
