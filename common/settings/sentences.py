"""Faults in settings as one sentence that names the setting."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from common.settings.tree import ENV_PREFIX, flag_of

_SIMILAR_RATIO = 0.7

_FLAG = re.compile(r"--[a-z][a-z0-9-]*[a-z0-9]")
_LITERAL = "literal_error"
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
    _LITERAL: "must be {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must have at least {min_length} values",
    "too_long": "must have at most {max_length} values",
}


def validation_sentence(
    error: ValidationError, named: Mapping[str, str] | None = None, secrets: Iterable[str] = ()
) -> str:
    """The first fault of a pydantic error. `named` says how the user called a field, if not by its flag; the values of
    `secrets` are not repeated."""
    first, *others = error.errors(include_url=False)
    if not first["loc"]:
        return _with_variables(first["msg"].removeprefix("Value error, "), named or {})
    name = str(first["loc"][0])
    called = (named or {}).get(name, flag_of(name))
    if first["type"] == "missing":
        return f"{called} is required."
    if first["type"] == "extra_forbidden":
        return f"{name!r} is not a setting."
    words = [_word(each["ctx"]["expected"]) for each in others if (each["loc"][0], each["type"]) == (name, _LITERAL)]
    rule = " or ".join([_rule(first), *words])
    return f"{called} {rule}." if name in secrets else f"{called} {rule} (got {first['input']!r})."


def _with_variables(sentence: str, named: Mapping[str, str]) -> str:
    """A sentence of a settings class, with the variables that the user has set instead of their flags."""
    variables = {flag_of(name): said for name, said in named.items() if said.startswith(ENV_PREFIX)}
    return _FLAG.sub(lambda flag: variables.get(flag[0], flag[0]), sentence)


def _rule(fault: Any) -> str:
    template = _RULES.get(fault["type"])
    if fault["type"] in ("string_too_short", "too_short") and fault["ctx"]["min_length"] == 1:
        return "must not be empty"
    if template is None:
        return "is refused: " + str(fault["msg"]).removeprefix("Value error, ")
    return template.format_map({name: _word(value) for name, value in fault.get("ctx", {}).items()})


def _word(value: Any) -> str:
    """A bound or a list of choices, as people write it."""
    return f"{value:g}" if isinstance(value, float) else str(value).replace("'", "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` with the most similar name, or nothing."""
    close = most_similar(name, known, _SIMILAR_RATIO)
    return f"; did you mean {close}?" if close is not None else ""


def most_similar(name: str, known: Iterable[str], ratio: float) -> str | None:
    """The name most like `name`, if it is like it by difflib's `ratio`. What all names begin with does not count."""
    by_rest = {_rest(each): each for each in known}
    close = difflib.get_close_matches(_rest(name), by_rest, n=1, cutoff=ratio)
    return by_rest[close[0]] if close else None


def _rest(name: str) -> str:
    return name.removeprefix("--").removeprefix(ENV_PREFIX)
