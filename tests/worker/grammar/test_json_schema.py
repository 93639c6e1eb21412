"""Which schemas are taken, which are refused and with what words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from worker.grammar.json_schema import SchemaFault, prepared

FAULTS: list[tuple[Any, str]] = [
    (5, "an object"),
    (False, "allows no answer"),
    ({"type": "objekt"}, "/type is no valid JSON schema"),
    ({"minLength": -1}, "/minLength is no valid JSON schema"),
    ({"not": {}}, "#: not is not supported"),
    ({"properties": {"a": {"multipleOf": 2}}}, "#/properties/a: multipleOf"),
    ({"items": {"if": {}}}, "#/items: if"),
    ({"prefixItems": [{}, {"uniqueItems": True}]}, "#/prefixItems/1: uniqueItems"),
    ({"$defs": {"x": {"contains": {}}}}, "#/$defs/x: contains"),
    ({"type": "string", "maxLength": 100_001}, "maxLength must be at most 100000"),
    ({"$ref": "#/$defs/x", "minLength": 3}, "$ref together with minLength"),
    ({"$ref": "http://example.com/x.json"}, "a place in the same schema"),
    ({"items": {"$ref": "#anchor"}, "$defs": {"x": {"$anchor": "anchor"}}}, "#/items: $ref must be"),
    ({"$defs": {"x": {"$id": "x"}}}, "#/$defs/x: $id"),
    ({"anyOf": [{}], "type": "string"}, "anyOf together with type"),
    ({"allOf": [{}, {}]}, "allOf with more than one"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "overlap"),
    ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "overlap"),
    ({"oneOf": [True, {"type": "string"}]}, "overlap"),
    ({"enum": [1, "a"], "type": "integer"}, 'the value "a" of enum contradicts'),
    ({"const": 1, "minimum": 2}, "the value 1 of const contradicts"),
    ({"enum": [1], "const": 1}, "enum together with const"),
    ({"pattern": "a", "minLength": 3}, "pattern together with minLength"),
    ({"format": "date", "pattern": "a"}, "pattern together with format"),
    ({"pattern": "a?" * 2049}, "at most 4096 characters"),
    ({"patternProperties": {"a" * 4097: {}}}, "at most 4096 characters"),
    ({"pattern": "(?=a)b"}, "'(?' in a pattern"),
    ({"pattern": "a\\b"}, "'\\\\b' in a pattern"),
    ({"patternProperties": {"(?!x)": {}}}, "in a pattern"),
    ({"pattern": 'say "a"'}, "'\"' in a pattern"),
    ({"pattern": "\\\\"}, "in a pattern"),
    ({"minProperties": 1}, "minProperties"),
    ({"required": ["a"], "additionalProperties": False}, "required names 'a'"),
]
TAKEN: list[Any] = [
    True,
    {},
    {"type": "object", "uniqueItems": False, "title": "x", "default": 5},
    {"properties": {"not": {"type": "string"}, "if": {}}},  # names of properties are no keywords
    {"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "y"},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]} for name in ("a", "b")
        ]
    },
    {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "string"}}, "default": None},
    {"enum": [1, 2], "type": "integer"},
    {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
    {"$id": "http://example.com/top.json", "items": {"$ref": "#"}},
    {"pattern": "^(?:a|b)+$"},
    {"minProperties": 1, "required": ["a"], "properties": {"a": {}}},
]


@pytest.mark.parametrize(("schema", "words"), FAULTS)
def test_what_would_be_ignored_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(SchemaFault) as fault:
        prepared(schema)
    assert words in str(fault.value)


@pytest.mark.parametrize("schema", TAKEN)
def test_others_pass_unchanged(schema: Any) -> None:
    assert json.loads(prepared(schema)) == schema


def test_required_properties_are_described() -> None:
    null = {"type": "null"}
    schema = {"type": "object", "properties": {"a": {}}, "required": ["b", "a"], "additionalProperties": null}
    assert json.loads(prepared(schema))["properties"] == {"a": {}, "b": null}
    assert schema["properties"] == {"a": {}}  # what was given is not changed
    assert json.loads(prepared({"items": {"required": ["b"]}}))["items"]["properties"] == {"b": {}}


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [({"maxLength": 3}, "{0,3}"), ({"minLength": 2}, "{2,}"), ({"minLength": 1, "maxLength": 1}, "{1,1}")],
)
def test_bounded_strings_hold_no_control_characters(bounds: dict[str, int], counts: str) -> None:
    """Nor escapes, which would count as several characters."""
    schema = json.loads(prepared({"properties": {"a": {"type": ["string", "null"], **bounds}}}))["properties"]["a"]
    assert schema["type"] == ["string", "null"] and set(schema) == {"type", "pattern"}
    pattern = re.compile(schema["pattern"])
    assert schema["pattern"].endswith(counts + "$")
    for text, fits in (("a", True), ("漢", True), ("\U0010ffff", True), ("[", True), ("]", True), ('"', False)):
        assert bool(pattern.match(text * max(bounds.values()))) == fits, text
    for text in ("\x07", "\n", "\\", "\ud800"):
        assert not pattern.match(text * max(bounds.values())), text


def test_depth_is_bounded() -> None:
    schema: Any = {}
    for _ in range(65):
        schema = {"items": schema}
    with pytest.raises(SchemaFault, match="nested"):
        prepared(schema)
