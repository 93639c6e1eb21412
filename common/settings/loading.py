"""Joins the four sources of a settings tree, validates once, and remembers where each value came from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from common.errors import UserError
from common.settings.command_line import parse
from common.settings.environment import CONFIG_VARIABLE, read_environment
from common.settings.help_page import metavar
from common.settings.sentences import validation_sentence
from common.settings.show import as_yaml
from common.settings.tree import ENV_PREFIX, Settings, settings_of
from common.settings.yaml_file import FileValues, read_yaml

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A validated tree and where each value that is not a default came from (field name -> source)."""

    settings: S
    sources: dict[str, str]


def load(
    cls: type[S], argv: Sequence[str], env: Mapping[str, str], *, prog: str, positional: str | None = None
) -> Loaded[S]:
    """Build `cls` from its four sources; `positional` is the field that may be given without its flag.

    Raises UserError for any fault in them. Old names are told on standard error. --help and --print-config print their
    page and leave by SystemExit.
    """
    line = parse(cls, argv, prog=prog, positional=positional)
    variables, warnings = read_environment(cls, env, prog)
    file = _file(cls, line.config, env)
    values = file.values | {name: value for name, (_, value) in variables.items()} | line.values
    if positional is not None and positional not in values:
        raise UserError(f"{metavar(positional)} is missing; give {prog} a {cls.model_fields[positional].description}.")
    called = file.called | {name: variable for name, (variable, _) in variables.items()}
    settings = validated(cls, values, {name: text for name, text in called.items() if name not in line.values})
    in_environment = [v.removeprefix(ENV_PREFIX).lower().replace("_", "-") for v, _ in variables.values()]
    for sentence in warnings + _deprecations(cls, [*file.spellings, *in_environment, *line.spellings]):
        print(f"{prog}: {sentence}", file=sys.stderr)
    sources = _sources(file.values, variables, line.values)
    if line.print_config:
        print(as_yaml(settings, sources), end="")
        raise SystemExit(0)
    return Loaded(settings, sources)


def _file(cls: type[Settings], config: str | None, env: Mapping[str, str]) -> FileValues:
    """The file of --config, else of its variable, if there is one."""
    if config is not None:
        return read_yaml(config, cls, "--config")
    return read_yaml(env[CONFIG_VARIABLE], cls, CONFIG_VARIABLE) if env.get(CONFIG_VARIABLE) else FileValues()


def _sources(file: Iterable[str], variables: Iterable[str], line: Iterable[str]) -> dict[str, str]:
    """Field name -> the strongest source that sets it."""
    weakest_first = (("config file", file), ("environment", variables), ("command line", line))
    return {name: source for source, names in weakest_first for name in names}


def validated(cls: type[S], values: Mapping[str, Any], called: Mapping[str, str] | None = None) -> S:
    """Build `cls` from values. Raises UserError for the first fault; `called` says how the user named a field."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        secrets = {setting.name for setting in settings_of(cls) if setting.secret}
        raise UserError(validation_sentence(error, called, secrets)) from None


def _deprecations(cls: type[Settings], used: Sequence[str]) -> list[str]:
    return [
        f"--{spelling} is an old name; use {setting.flag}."
        for setting in settings_of(cls)
        for spelling in setting.deprecated
        if spelling in used
    ]
