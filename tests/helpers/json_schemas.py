"""Random JSON schemas of the kind that people ask answers to follow. Each has a value, by the way it is made."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_NAMES = st.sampled_from(["name", "age", "tags", "ok", "x_1", "ünï", "a b", "city", "items", "kind"])
_TEXTS = st.text('abcé"\\ \n漢', max_size=6)
_CONSTANTS = st.one_of(st.integers(-1000, 1000), st.booleans(), st.none(), _TEXTS, st.sampled_from([0.5, -2.25]))


def _range(low: str, high: str, values: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, int]]:
    """Nothing, either bound, or both in order."""
    pair = st.tuples(values, values).map(sorted)
    both = pair.map(lambda p: {low: p[0], high: p[1]})
    return st.one_of(st.just({}), both, values.map(lambda v: {high: v}))


def _joined(kind: str, *parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda found: {"type": kind} | {k: v for part in found for k, v in part.items()})


_STRINGS = st.one_of(
    _joined("string", _range("minLength", "maxLength", st.integers(0, 8))),
    st.sampled_from(["^[a-c]{2,4}$", "^\\d{3}-\\d{2}$", "^(?:red|green)$", "^[A-Z][a-z]*$"]).map(
        lambda p: {"type": "string", "pattern": p}
    ),
    st.sampled_from(["date", "uuid", "email", "ipv4", "date-time"]).map(lambda f: {"type": "string", "format": f}),
)
_NUMBERS = st.one_of(
    _joined("integer", _range("minimum", "maximum", st.integers(-50, 500))),
    _joined("number", _range("minimum", "maximum", st.integers(-50, 500))),
    st.integers(-5, 5).map(lambda n: {"type": "integer", "exclusiveMinimum": n, "maximum": n + 9}),
)
_LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _STRINGS,
    _NUMBERS,
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 5}]),
    st.lists(_CONSTANTS, min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values}),
    _CONSTANTS.map(lambda value: {"const": value}),
)


@st.composite
def _objects(draw: st.DrawFn, parts: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(_NAMES, parts, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties and draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), min_size=1, unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.one_of(st.just(False), parts))
    return schema


def _nested(parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = _joined("array", parts.map(lambda p: {"items": p}), _range("minItems", "maxItems", st.integers(0, 3)))
    tuples = st.lists(parts, min_size=1, max_size=3).map(
        lambda ps: {"type": "array", "prefixItems": ps, "minItems": len(ps), "items": False}
    )
    choices = st.lists(parts, min_size=2, max_size=3).map(lambda ps: {"anyOf": ps})
    return st.one_of(_objects(parts), arrays, tuples, choices)


_INNER = st.recursive(_LEAVES, _nested, max_leaves=6)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.one_of(_objects(_INNER), _nested(_INNER), _LEAVES)
