"""The YAML file of --config: a mapping whose keys are settings."""

from __future__ import annotations

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


def read_yaml(path: str, cls: type[Settings]) -> FileValues:
    """Keys may be written with dashes or underscores, and be any name of a setting. An empty file sets nothing.

    Raises UserError for a file that cannot be read, and for keys that are unknown or set one thing twice.
    """
    if Path(path).suffix not in _SUFFIXES:
        raise UserError(f"--config: {path} must end in .yaml or .yml.")
    known = by_spelling(cls)
    found = FileValues()
    for key, value in _mapping(path):
        spelling = key.replace("_", "-")
        setting = known.get(spelling)
        if setting is None:
            raise UserError(f"--config: {path} has the unknown key {key!r}{did_you_mean(spelling, known) or '.'}")
        if setting.name in found.values:
            raise UserError(f"--config: {path} sets {setting.spellings[0]} twice; keep one of the two.")
        found.values[setting.name] = _checked(setting, value, key, path)
        found.called[setting.name] = f"{key} in {path}"
        found.spellings.append(spelling)
    return found


def _mapping(path: str) -> list[tuple[str, Any]]:
    """Keys and values in the order of the file, doubles too."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        build = yaml.SafeLoader("").construct_document
        if root is None or build(root) is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"--config: the root of {path} must be a mapping of settings.")
        return [(str(build(key)), build(value)) for key, value in root.value]
    except OSError as error:
        raise UserError(f"--config: cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"--config: {path} is not UTF-8 text; save it as UTF-8.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a date that does not exist
        raise UserError(f"--config: {path} is not valid YAML: {' '.join(str(error).split())}.") from None


def _checked(setting: Setting, value: Any, key: str, path: str) -> Any:
    """YAML's own types, where they are stricter or looser than those of the command line."""
    values = [value] if setting.is_list and isinstance(value, str | int | float) else value
    if setting.item_kind in (int, float):
        for item in values if isinstance(values, list) else [values]:
            if isinstance(item, bool):
                raise UserError(f"{key} in {path} must be a number (got {str(item).lower()}).")
    return values
