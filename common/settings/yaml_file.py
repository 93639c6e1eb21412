"""The YAML file of --config: a mapping whose keys are settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.settings.sentences import did_you_mean
from common.settings.tree import Setting, Settings, by_spelling

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class FileValues:
    """What a file sets: field name -> value, how each was called there, and which names are deprecated."""

    values: dict[str, Any] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    spellings: list[str] = field(default_factory=list)


def read_yaml(path: str, cls: type[Settings], said: str) -> FileValues:
    """`said` is how the user named the file: flag or variable. Keys may have dashes or underscores, and be any
    name of a setting. An empty file sets nothing.

    Raises UserError for a file that cannot be read, and for keys that are unknown or set one thing twice.
    """
    if not path:
        raise UserError(f"{said} must not be empty; name a YAML file.")
    return values_of(read_mapping(path, said), cls, path, f"{said}: ")


def values_of(items: Iterable[tuple[str, Any]], cls: type[Settings], place: str, said: str = "") -> FileValues:
    """The settings of a mapping. `place` is where it stands. Raises UserError like `read_yaml`."""
    known = by_spelling(cls)
    found = FileValues()
    for key, value in items:
        spelling = key.replace("_", "-")
        setting = known.get(spelling)
        if setting is None:
            raise UserError(f"{said}{place} has the unknown key {key!r}{_hint(spelling, known)}")
        if setting.name in found.values:
            raise UserError(f"{said}{place} sets {setting.spellings[0]} twice; keep one of the two.")
        found.values[setting.name] = _checked(setting, value, key, place)
        found.called[setting.name] = f"{key} in {place}"
        found.spellings.append(spelling)
    return found


def read_mapping(path: str, said: str) -> list[tuple[str, Any]]:
    """Keys and values of a YAML file in its order, doubles too. Raises UserError if that is not what it holds."""
    if Path(path).suffix not in _SUFFIXES:
        raise UserError(f"{said}: {path} must end in .yaml or .yml.")
    try:
        text = Path(path).read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        build = yaml.SafeLoader("").construct_document
        if root is None or build(root) is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{said}: the root of {path} must be a mapping of settings.")
        return [(str(build(key)), build(value)) for key, value in root.value]
    except OSError as error:
        raise UserError(f"{said}: cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{said}: {path} is not UTF-8 text; save it as UTF-8.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a date that does not exist
        raise UserError(f"{said}: {path} is not valid YAML: {_problem(error)}.") from None


def _hint(spelling: str, known: Iterable[str]) -> str:
    return did_you_mean(spelling, known) or "; --help lists the known ones."


def _problem(error: Exception) -> str:
    """A YAML error without its drawing of the place, but with the line."""
    if isinstance(error, yaml.MarkedYAMLError):
        text = ", ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark or error.context_mark
        return text if mark is None else f"{text} (line {mark.line + 1})"
    return " ".join(str(error).split())


def _checked(setting: Setting, value: Any, key: str, path: str) -> Any:
    """YAML's own types, where they are stricter or looser than those of the command line."""
    values = [value] if setting.is_list and isinstance(value, str | int | float) else value
    if setting.item_kind in (int, float):
        for item in values if isinstance(values, list) else [values]:
            if isinstance(item, bool):
                raise UserError(f"{key} in {path} must be a number (got {str(item).lower()}).")
    return values
