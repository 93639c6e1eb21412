"""One typed settings tree per process: command line > environment > YAML file > default.

A settings class is a frozen pydantic model whose fields are made by `option()`. `load()` builds the parser from the
fields, merges the four sources and validates once. Every fault becomes one sentence (`UserError`).
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from common.errors import UserError

ENV_PREFIX = "CANOPY_"


class Settings(BaseModel):
    """Base of every settings class: immutable, unknown keys refused, all values in declared units."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _refuse_not_built(self) -> Settings:
        """A setting of a feature that does not exist may only have its default."""
        for name, field in type(self).model_fields.items():
            instead, value = _extra(field)["not_built"], getattr(self, name)
            if instead is not None and value != field.default:
                flag = flag_of(name) if value is True else f"{flag_of(name)} {value}"
                raise ValueError(f"{flag} is not built yet: {instead}.")
        return self


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A validated tree and where each value that is not a default came from (field name -> source)."""

    settings: S
    sources: dict[str, str]


def option(
    default: Any,
    help_text: str,
    *,
    category: str,
    aliases: Sequence[str] = (),
    deprecated: Sequence[str] = (),
    not_built: str | None = None,
    secret: bool = False,
    **bounds: Any,
) -> Any:
    """A settings field: default (`...` = required), help with its unit, category of the help page, and more.

    aliases, deprecated: further names, without dashes in front; a deprecated one is accepted with a warning.
    not_built: what to do instead; the setting is known, but any value but its default is refused.
    secret: the value is shown nowhere.
    bounds: pydantic's, such as ge=0.
    """
    extra = {
        "category": category,
        "aliases": list(aliases),
        "deprecated": list(deprecated),
        "not_built": not_built,
        "secret": secret,
    }
    return Field(default, description=help_text, json_schema_extra=cast(Any, extra), repr=not secret, **bounds)


def flag_of(name: str) -> str:
    """The first spelling of a field on the command line."""
    return "--" + name.replace("_", "-")


def load(cls: type[S], argv: Sequence[str], env: Mapping[str, str], *, prog: str) -> Loaded[S]:
    """Build `cls` from its four sources. Raises UserError for any fault in them."""
    cli = vars(build_parser(cls, prog).parse_args(list(argv)))
    config = cli.pop("config", [])
    if len(config) > 1:
        raise UserError("--config was given twice; merge the files and give one.")
    from_file = read_yaml(config[0], cls) if config else {}
    from_env = {n: env[ENV_PREFIX + n.upper()] for n in cls.model_fields if ENV_PREFIX + n.upper() in env}
    from_env = {n: _split_if_list(cls.model_fields[n], v) for n, v in from_env.items()}
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, values in (("config file", from_file), ("environment", from_env), ("command line", cli)):
        merged.update(values)
        sources.update(dict.fromkeys(values, source))
    try:
        return Loaded(cls.model_validate(merged), sources)
    except ValidationError as error:
        raise UserError(validation_sentence(error)) from None


def read_yaml(path: str, cls: type[Settings]) -> dict[str, Any]:
    """A YAML mapping with keys in dashes, underscores or alias spelling -> field values."""
    if Path(path).suffix not in (".yaml", ".yml"):
        raise UserError(f"--config: {path} must end in .yaml or .yml.")
    try:
        root = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as error:
        raise UserError(f"--config: cannot read {path}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"--config: {path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(root, dict):
        raise UserError(f"--config: the root of {path} must be a mapping of settings.")
    names = {alias: name for name, field in cls.model_fields.items() for alias in _spellings(name, field)}
    values: dict[str, Any] = {}
    for key, value in root.items():
        name = names.get(str(key).replace("_", "-"))
        if name is None:
            raise UserError(f"--config: {path} has the unknown key {key!r}; see --help for the settings.")
        values[name] = value
    return values


def build_parser(cls: type[Settings], prog: str) -> argparse.ArgumentParser:
    """An argument parser over the fields of `cls`, grouped by category; absent flags leave no value behind."""
    parser = _Parser(prog=prog, description=_first_line(cls.__doc__), allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[], help="YAML file with any of these settings")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, field in cls.model_fields.items():
        extra = _extra(field)
        group = groups.setdefault(extra["category"], parser.add_argument_group(extra["category"]))
        _add_flag(group, name, field)
    return parser


def validation_sentence(error: ValidationError) -> str:
    """The first fault of a pydantic error as one sentence that names the flag."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    flag = "--" + str(first["loc"][0]).replace("_", "-")
    if first["type"] == "missing":
        return f"{flag} is required."
    return f"{flag}: {message} (got {first['input']!r})."


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    flags = ["--" + spelling for spelling in _spellings(name, field)]
    kind = _bare_type(field.annotation)
    default = "required" if field.is_required() else f"default {field.default}"
    common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    common["help"] = f"{field.description} ({default})".replace("%", "%%")
    if kind is bool:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(kind) is Literal:
        group.add_argument(*flags, choices=get_args(kind), **common)
    elif get_origin(kind) in (list, tuple):
        group.add_argument(*flags, nargs="+", metavar="VALUE", **common)
    else:
        group.add_argument(*flags, metavar=getattr(kind, "__name__", "value").upper(), **common)


def _spellings(name: str, field: FieldInfo) -> list[str]:
    return [name.replace("_", "-"), *_extra(field)["aliases"], *_extra(field)["deprecated"]]


def _extra(field: FieldInfo) -> dict[str, Any]:
    return cast(dict[str, Any], field.json_schema_extra)


def _bare_type(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _split_if_list(field: FieldInfo, value: str) -> Any:
    return value.split(",") if get_origin(_bare_type(field.annotation)) in (list, tuple) else value


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""
