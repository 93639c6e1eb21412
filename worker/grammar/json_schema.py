"""JSON schemas as the grammar compiler takes them. What it would silently leave out of account is refused here, so that
every answer that ends by itself validates.

xgrammar lets anything come for a reference to elsewhere, ignores keywords beside `$ref`, `enum`, `const`, `anyOf`,
`oneOf` and `allOf`, takes overlapping `oneOf` for `anyOf`, and does not know some keywords at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

MAX_DEPTH = 64
MAX_PATTERN_CHARS = 4096  # compiling may take time that grows with the third power
MAX_COUNT = 100_000  # of characters, items and properties; grammars grow with them

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$comment", "$id", "$schema", "$defs", "definitions", "nullable", "contentMediaType", "contentEncoding"),
    )
)
_UNKNOWN_TO_GRAMMARS = (
    *("not", "if", "then", "else", "uniqueItems", "multipleOf", "contains", "minContains", "maxContains"),
    *("dependentRequired", "dependentSchemas", "dependencies", "additionalItems", "unevaluatedItems"),
    *("unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_WHOLE = ("$ref", "anyOf", "oneOf", "allOf")  # beside these no other assertion counts
# Any that stands for itself in a JSON string.
_CHARACTER = "[ !#-\\[\\]-\ud7ff\ue000-\U0010ffff]"
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "propertyNames")


class SchemaFault(ValueError):
    """A schema that cannot be followed. The text says where in it and why."""


def prepared(schema: Any) -> str:
    """The schema as JSON text for the compiler. Raises SchemaFault."""
    if not isinstance(schema, dict | bool):
        raise SchemaFault("a JSON schema is an object")
    if schema is False:
        raise SchemaFault("the schema false allows no answer")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        at = "".join(f"/{part}" for part in error.path)
        raise SchemaFault(f"{at or 'it'} is no valid JSON schema: {error.message[:200]}") from None
    except RecursionError:
        raise SchemaFault(f"it is nested more than {MAX_DEPTH} levels deep") from None
    return json.dumps(_prepared(schema, "#", 0))


def _prepared(schema: Any, at: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise SchemaFault(f"it is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(schema, dict):
        return schema
    _check(schema, at)
    result = dict(schema)
    for name, part, sub_schema in _sub_schemas(schema):
        changed = _prepared(sub_schema, f"{at}/{name}" + ("" if part is None else f"/{part}"), depth + 1)
        if part is None:
            result[name] = changed
        else:
            result[name] = result[name].copy()
            result[name][part] = changed
    return _with_lengths_as_pattern(_with_required_described(result, at))


def _sub_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(keyword, key or index below it, schema) of all schemas directly inside one."""
    for name in _MAPS:
        yield from ((name, key, part) for key, part in schema.get(name, {}).items())
    for name in _LISTS:
        yield from ((name, index, part) for index, part in enumerate(schema.get(name, ())))
    yield from ((name, None, schema[name]) for name in _SINGLE if name in schema)


def _check(schema: Mapping[str, Any], at: str) -> None:
    for name in _UNKNOWN_TO_GRAMMARS:
        if schema.get(name, False) is not False:
            raise SchemaFault(f"{at}: {name} is not supported")
    for name in _COUNTS:
        if schema.get(name, 0) > MAX_COUNT:
            raise SchemaFault(f"{at}: {name} must be at most {MAX_COUNT}")
    _check_names(schema, at)
    asserted = [name for name in schema if name not in _ANNOTATIONS]
    for name in _WHOLE:
        if name in schema and len(asserted) > 1:
            other = next(each for each in asserted if each != name)
            raise SchemaFault(f"{at}: {name} together with {other} is not supported")
    if len(schema.get("allOf", ())) > 1:
        raise SchemaFault(f"{at}: allOf with more than one schema is not supported")
    if "oneOf" in schema and not _disjoint(schema["oneOf"]):
        raise SchemaFault(f"{at}: the schemas of oneOf overlap, or may do so; give them different types or use anyOf")
    if schema.get("minProperties", 0) > len(schema.get("required", ())):
        raise SchemaFault(f"{at}: minProperties is supported up to the number of required properties only")
    _check_values(schema, at)
    _check_strings(schema, at)


def _check_names(schema: Mapping[str, Any], at: str) -> None:
    if "$ref" in schema and not re.match("#(/|$)", schema["$ref"]):
        raise SchemaFault(f"{at}: $ref must be a place in the same schema, '#/...', not {schema['$ref'][:100]!r}")
    if "$id" in schema and at != "#":
        raise SchemaFault(f"{at}: $id is supported at the top only")


def _check_values(schema: Mapping[str, Any], at: str) -> None:
    """Every value of enum and const must satisfy what stands beside it."""
    for name in ("enum", "const"):
        if name not in schema:
            continue
        if name == "const" and "enum" in schema:
            raise SchemaFault(f"{at}: enum together with const is not supported")
        rest = {key: value for key, value in schema.items() if key != name and key not in _ANNOTATIONS}
        validator = jsonschema.Draft202012Validator(rest)
        for value in schema["enum"] if name == "enum" else (schema["const"],):
            if not validator.is_valid(value):
                raise SchemaFault(f"{at}: the value {json.dumps(value)[:100]} of {name} contradicts the rest of it")


def _check_strings(schema: Mapping[str, Any], at: str) -> None:
    """Only one of pattern, format and length is looked at."""
    kinds = [name for name in ("pattern", "format") if name in schema]
    lengths = [name for name in ("minLength", "maxLength") if name in schema]
    if len(kinds) > 1 or (kinds and lengths):
        first, second, *_ = kinds + lengths
        raise SchemaFault(f"{at}: {first} together with {second} is not supported")
    patterns = [schema["pattern"]] if "pattern" in schema else []
    for pattern in (*patterns, *schema.get("patternProperties", {})):
        if len(pattern) > MAX_PATTERN_CHARS:
            raise SchemaFault(f"{at}: a pattern must have at most {MAX_PATTERN_CHARS} characters")
        # xgrammar writes the last two as they stand, which ends a JSON string or begins an escape.
        if (found := re.search(r"\(\?(?!:)|\\[bB1-9]|\"|\\\\", pattern)) is not None:
            raise SchemaFault(f"{at}: {found[0]!r} in a pattern is not supported")


def _disjoint(branches: list[Any]) -> bool:
    """Whether no value can match two of these schemas, as far as types and distinguishing constants tell."""
    if not all(isinstance(branch, dict) for branch in branches):
        return False
    types = [_types(branch) for branch in branches]
    seen: set[str] = set()
    for each in types:
        if each & seen:
            return _told_apart(branches)
        seen |= each
    return True


def _types(branch: Mapping[str, Any]) -> set[str]:
    """The JSON types a schema allows; integer counts as number."""
    names = branch.get("type", ["object", "array", "string", "number", "boolean", "null"])
    return {"number" if name == "integer" else name for name in ([names] if isinstance(names, str) else names)}


def _told_apart(branches: list[Any]) -> bool:
    """All are objects with one required property whose constants differ."""
    shared = set.intersection(*(set(branch.get("required", ())) for branch in branches))
    if any(branch.get("type") != "object" for branch in branches):
        return False
    return any(_constants_differ([branch.get("properties", {}).get(name) for branch in branches]) for name in shared)


def _constants_differ(schemas: list[Any]) -> bool:
    values: list[str] = []
    for schema in schemas:
        if not isinstance(schema, dict) or not ("const" in schema or "enum" in schema):
            return False
        given = [schema["const"]] if "const" in schema else schema["enum"]
        values += [json.dumps(value, sort_keys=True) for value in given]
    return len(set(values)) == len(values)


def _with_lengths_as_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """Into strings whose length is bounded xgrammar lets control characters, which JSON does not allow, and halves of
    surrogate pairs, which become several characters."""
    if "minLength" not in schema and "maxLength" not in schema:
        return schema
    counts = f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
    rest = {name: value for name, value in schema.items() if name not in ("minLength", "maxLength")}
    return rest | {"pattern": f"^{_CHARACTER}{counts}$"}


def _with_required_described(schema: dict[str, Any], at: str) -> dict[str, Any]:
    """Required properties get a schema of their own; without one no grammar would let them come."""
    if "required" not in schema:
        return schema
    described = schema.get("properties", {})
    more = schema.get("additionalProperties", {})
    missing = [name for name in schema["required"] if name not in described]
    if missing and (more is False or "patternProperties" in schema or "propertyNames" in schema):
        raise SchemaFault(f"{at}: required names {missing[0]!r}, which properties does not describe")
    if not missing:
        return schema
    return schema | {"properties": described | {name: {} if more is True else more for name in missing}}
