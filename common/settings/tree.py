"""Settings classes and their fields: what a setting is called, what it takes, and what is known about it.

A settings class is a frozen pydantic model whose fields are made by `option()`.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

ENV_PREFIX = "CANOPY_"


class Settings(BaseModel):
    """Base of every settings class: immutable, unknown keys refused, all values in declared units."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _refuse_not_built(self) -> Settings:
        """A setting of a feature that does not exist may only have its default."""
        for setting in settings_of(type(self)):
            value = getattr(self, setting.name)
            if setting.not_built is not None and value != setting.default:
                flag = setting.flag if value is True or setting.secret else f"{setting.flag} {value}"
                raise ValueError(f"{flag} is not built yet: {setting.not_built}.")
        return self


def option(
    default: Any,
    help_text: str,
    *,
    category: str,
    aliases: Sequence[str] = (),
    deprecated: Sequence[str] = (),
    not_built: str | None = None,
    secret: bool = False,
    path: bool = False,
    **bounds: Any,
) -> Any:
    """A settings field: default (`...` = required), help with its unit, category of the help page, and more.

    aliases, deprecated: further names, without dashes in front; a deprecated one is accepted with a warning.
    not_built: what to do instead; the setting is known, but any value but its default is refused.
    secret: the value is shown nowhere.
    path: the value is, or may be, a path below the directory where the user is.
    bounds: pydantic's, such as ge=0.
    """
    extra = {
        "category": category,
        "aliases": tuple(aliases),
        "deprecated": tuple(deprecated),
        "not_built": not_built,
        "secret": secret,
        "path": path,
    }
    return Field(default, description=help_text, json_schema_extra=cast(Any, extra), repr=not secret, **bounds)


def without_feature(field: FieldInfo, instead: str) -> FieldInfo:
    """The same field for a program that does not have what it sets."""
    copied = copy.copy(field)
    copied.json_schema_extra = {**cast(dict[str, Any], field.json_schema_extra), "not_built": instead}
    return copied


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings class, read."""

    name: str
    field: FieldInfo

    @property
    def flag(self) -> str:
        """Its first spelling on the command line."""
        return flag_of(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All its names in dashes, without dashes in front, the main one first."""
        return (self.name.replace("_", "-"), *self.aliases, *self.deprecated)

    @property
    def help_text(self) -> str:
        """What it does, with its unit."""
        return self.field.description or ""

    @property
    def default(self) -> Any:
        """Its default; PydanticUndefined if it is required."""
        return self.field.default

    @property
    def required(self) -> bool:
        """Has no default."""
        return self.field.is_required()

    @property
    def category(self) -> str:
        """Group of the help page."""
        return cast(str, self._extra["category"])

    @property
    def aliases(self) -> tuple[str, ...]:
        """Further names."""
        return cast(tuple[str, ...], self._extra["aliases"])

    @property
    def deprecated(self) -> tuple[str, ...]:
        """Further names that are accepted with a warning."""
        return cast(tuple[str, ...], self._extra["deprecated"])

    @property
    def not_built(self) -> str | None:
        """What to do instead, if the feature does not exist."""
        return cast("str | None", self._extra["not_built"])

    @property
    def secret(self) -> bool:
        """The value is shown nowhere."""
        return cast(bool, self._extra["secret"])

    @property
    def path(self) -> bool:
        """The value may be a path below the directory where the user is."""
        return cast(bool, self._extra["path"])

    @property
    def kind(self) -> Any:
        """The type without None and without annotations: bool, int, str, a Literal, list[int], ..."""
        return bare_type(self.field.annotation)

    @property
    def is_list(self) -> bool:
        """Takes several values."""
        return get_origin(self.kind) is list

    @property
    def item_kind(self) -> Any:
        """The type of one value, in a list or alone."""
        return bare_type(get_args(self.kind)[0]) if self.is_list else self.kind

    @property
    def words(self) -> tuple[str, ...]:
        """Words that it takes besides values of its kind."""
        others = _parts(self.field.annotation)[1:]
        return tuple(word for part in others if get_origin(part) is Literal for word in get_args(part))

    def bounds(self) -> Iterator[str]:
        """What limits its numbers: at least 1, below 1."""
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        first = _parts(self.field.annotation)[0]
        own = get_args(first)[1:] if get_origin(first) is Annotated else ()
        for limit in (*self.field.metadata, *own):
            if isinstance(limit, annotated_types.Ge | annotated_types.Gt | annotated_types.Le | annotated_types.Lt):
                kind = type(limit).__name__.lower()
                bound = getattr(limit, kind)
                yield f"{words[kind]} {bound if isinstance(bound, int) else format(bound, 'g')}"

    @property
    def _extra(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.field.json_schema_extra)


@cache
def settings_of(cls: type[Settings]) -> tuple[Setting, ...]:
    """The fields in the order of the classes that declare them, as a reader of the code meets them."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        names.update(
            dict.fromkeys(name for name in base.__dict__.get("__annotations__", ()) if name in cls.model_fields)
        )
    return tuple(Setting(name, cls.model_fields[name]) for name in names)


def public_values(settings: Settings) -> dict[str, Any]:
    """Field name -> value, without secrets."""
    return {s.name: getattr(settings, s.name) for s in settings_of(type(settings)) if not s.secret}


def by_spelling(cls: type[Settings]) -> dict[str, Setting]:
    """Every accepted name, in dashes -> its setting."""
    return {spelling: setting for setting in settings_of(cls) for spelling in setting.spellings}


def flag_of(name: str) -> str:
    """The first spelling of a field on the command line."""
    return "--" + name.replace("_", "-")


def bare_type(annotation: Any) -> Any:
    """A type without None and without pydantic's annotations, the first of several."""
    annotation = _parts(annotation)[0]
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The types that a type allows, without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(arg for arg in get_args(annotation) if arg is not type(None))
    return (annotation,)
