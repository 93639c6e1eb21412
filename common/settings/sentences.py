"""Faults in settings as one sentence that names the setting."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from common.settings.tree import flag_of

_RULES = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text, in a YAML file between quotes",
    "list_type": "must be a list",
    "dict_type": "must be a JSON object or a mapping",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must have at least {min_length} values",
    "too_long": "must have at most {max_length} values",
}


def validation_sentence(
    error: ValidationError, named: Mapping[str, str] | None = None, secrets: Iterable[str] = ()
) -> str:
    """The first fault of a pydantic error. `named` says how the user called a field, if not by its flag; the values of
    `secrets` are not repeated."""
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return first["msg"].removeprefix("Value error, ")
    name = str(first["loc"][0])
    called = (named or {}).get(name, flag_of(name))
    if first["type"] == "missing":
        return f"{called} is required."
    if first["type"] == "extra_forbidden":
        return f"{name!r} is not a setting."
    rule = _rule(first)
    return f"{called} {rule}." if name in secrets else f"{called} {rule} (got {first['input']!r})."


def _rule(fault: Any) -> str:
    template = _RULES.get(fault["type"])
    if fault["type"] == "string_too_short" and fault["ctx"]["min_length"] == 1:
        return "must not be empty"
    if template is None:
        return "is refused: " + str(fault["msg"]).removeprefix("Value error, ")
    return template.format_map({name: _word(value) for name, value in fault.get("ctx", {}).items()})


def _word(value: Any) -> str:
    """A bound or a list of choices, as people write it."""
    return f"{value:g}" if isinstance(value, float) else str(value).replace("'", "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` with the most similar name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
