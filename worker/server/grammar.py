"""What a request says about the form of its answer -> GrammarAsked. Faults that need no tokenizer are found here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError

from worker.grammar.json_schema import SchemaFault, prepared
from worker.sampling_params import GrammarAsked
from worker.server.errors import RequestFault, from_validation
from worker.server.fields import MAX_EBNF_CHARS, MAX_REGEX_CHARS, Body

_NO_GRAMMARS = "{param}: {why}, so this server does not follow grammars."


class TagStructure(Body):
    """What may stand between two texts."""

    begin: Annotated[str, Field(min_length=1)]
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")] = True
    end: str


class StructuresTag(Body):
    """SGLang's older form of a structural tag."""

    structures: Annotated[list[TagStructure], Field(min_length=1)]
    triggers: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class GrammarRules:
    """`obstacle`: why no grammar can be followed here, None if they can."""

    obstacle: str | None

    def of(self, fields: Any, at: str = "") -> GrammarAsked | None:
        """From a request's fields `regex`, `ebnf`, `json_schema`, `structural_tag`, `response_format`; `at` is where
        they stand. Raises RequestFault."""
        asked = [found for found in (_field(fields, name, at) for name in _KINDS) if found is not None]
        response_format = getattr(fields, "response_format", None)
        if response_format is not None and response_format.type != "text":
            asked.append(_response_format(response_format))
        if not asked:
            return None
        if len(asked) > 1:
            text = f"Give only one of {asked[0].param} and {asked[1].param}."
            raise RequestFault(400, text, param=asked[1].param)
        self.check(asked[0].param)
        return asked[0]

    def check(self, param: str) -> None:
        """Raise RequestFault if no grammar can be followed; `param` is the field that asks for one."""
        if self.obstacle is not None:
            raise RequestFault(400, _NO_GRAMMARS.format(param=param, why=self.obstacle), param=param)


def _field(fields: Any, name: str, at: str) -> GrammarAsked | None:
    value, param = getattr(fields, name, None), at + name
    if not value and value is not False:
        return None
    if name == "json_schema":
        return _schema(_as_json(value, param), param)
    if name == "structural_tag":
        return _tag(_as_json(value, param), param)
    return GrammarAsked(kind=_KINDS[name], text=value, param=param)


def _response_format(given: Any) -> GrammarAsked:
    param = "response_format"
    if given.type == "json_object":
        return GrammarAsked(kind="json", text="", param=param)
    if given.type == "structural_tag":
        tag = given.model_dump(exclude_none=True, exclude={"json_schema"})
        return _tag(tag, param)
    if given.json_schema is None:
        raise RequestFault(400, f"{param}.json_schema is required.", param=f"{param}.json_schema")
    if given.json_schema.schema_ is None:
        raise RequestFault(400, f"{param}.json_schema.schema is required.", param=f"{param}.json_schema.schema")
    return _schema(given.json_schema.schema_, f"{param}.json_schema.schema")


def _schema(schema: Any, param: str) -> GrammarAsked:
    try:
        return GrammarAsked(kind="json_schema", text=prepared(schema), param=param)
    except SchemaFault as fault:
        raise RequestFault(400, f"{param}: {fault}.", param=param) from None


def _tag(tag: Any, param: str) -> GrammarAsked:
    """Schemas inside a tag are held to the same rules."""
    if not isinstance(tag, dict):
        raise RequestFault(400, f"{param}: must be a JSON object.", param=param)
    if "structures" in tag:
        _check_structures(tag, param)
    try:
        return GrammarAsked(kind="structural_tag", text=json.dumps(_with_schemas_prepared(tag)), param=param)
    except SchemaFault as fault:
        raise RequestFault(400, f"{param}: {fault}.", param=param) from None
    except RecursionError:
        raise RequestFault(400, f"{param}: it is nested too deep.", param=param) from None


def _check_structures(tag: Mapping[str, Any], param: str) -> None:
    try:
        StructuresTag.model_validate(tag)
    except ValidationError as error:
        fault = from_validation(error)
        raise RequestFault(400, f"{param}.{fault.message}", param=f"{param}.{fault.param}") from None


def _with_schemas_prepared(tag: Any) -> Any:
    if isinstance(tag, list):
        return [_with_schemas_prepared(part) for part in tag]
    if not isinstance(tag, Mapping):
        return tag
    for name, most in _MOST_CHARS.items():
        if len(str(tag.get(name, ""))) > most:
            raise SchemaFault(f"{name} must have at most {most} characters")
    return {
        name: json.loads(prepared(part)) if name in ("schema", "json_schema") else _with_schemas_prepared(part)
        for name, part in tag.items()
    }


def _as_json(value: Any, param: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise RequestFault(400, f"{param}: is no valid JSON.", param=param) from None


_MOST_CHARS: Mapping[str, int] = {"grammar": MAX_EBNF_CHARS, "pattern": MAX_REGEX_CHARS}  # inside tags
_KINDS: Mapping[str, Any] = {name: name for name in ("regex", "ebnf", "json_schema", "structural_tag")}
