"""Every fault a client can meet, and pydantic's faults as ours. worker/server/http.py makes HTTP answers of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from common.errors import HttpFault


class RequestFault(HttpFault):
    """A request that this replica cannot serve."""


@contextmanager
def named_as(names: Mapping[str, str]) -> Iterator[None]:
    """Faults of a chat name the fields of the API that the chat was translated from. `names`: regular expressions for
    the beginning of a chat's field, and what it is called there."""
    try:
        yield
    except RequestFault as fault:
        for theirs, ours in names.items():
            param, found = re.subn(f"^{theirs}", ours, fault.param or "")
            if found:
                message = re.sub(f"^{re.escape(fault.param or '')}\\b", param, fault.message)
                raise RequestFault(fault.status, message, param=param, code=fault.code) from None
        raise


def from_validation(error: ValidationError) -> RequestFault:
    """The first fault pydantic found, as 400 with the path of the field. Of a union's branches the one that got
    furthest speaks."""
    errors = error.errors(include_url=False, include_input=False)
    same_field = [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same_field, key=lambda each: len(each["loc"]))
    if first["type"] == "json_invalid":
        return RequestFault(400, f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    path = field_path(first["loc"])
    if first["type"] == "missing":
        return RequestFault(400, f"{path} is required.", param=path)
    same_place = [_rule(each) for each in same_field if field_path(each["loc"]) == path]
    return RequestFault(400, f"{path or 'The body'}: {_one_of(same_place)}.", param=path)


def _rule(fault: ErrorDetails) -> str:
    """What the field must be."""
    context = {name: _number(value) for name, value in fault.get("ctx", {}).items()}
    if context.get("min_length") == 1:
        return "must not be empty"
    if fault["type"] in _RULES:
        return _RULES[fault["type"]].format_map(context)
    text = _CLASS.sub("", fault["msg"].removeprefix("Value error, ").rstrip("."))
    return text.replace("Input should be ", _KIND)


def _number(value: Any) -> Any:
    """A bound as people write it: 2, not 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_of(rules: Sequence[str]) -> str:
    """The rule, or one out of those for each branch of a union."""
    first, *others = dict.fromkeys(rules)
    kinds = [message.removeprefix(_KIND) for message in (first, *others) if message.startswith(_KIND)]
    return _KIND + " or ".join(kinds) if first.startswith(_KIND) else first


def field_path(location: Sequence[int | str]) -> str | None:
    """`("messages", 0, "content")` -> `messages[0].content`. The union branches that pydantic names are left out."""
    path = ""
    for at, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in _KINDS_OF_ITEMS and at and isinstance(location[at - 1], int) and at + 1 < len(location):
            continue
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}" if path else part
    return path or None


_KIND = "must be "
_RULES = {
    "extra_forbidden": "there is no such field",
    "too_long": "must have at most {max_length} items",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
}
_CLASS = re.compile(r" or instance of \w+$")
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict"})
# By their `type` pydantic tells the items of a list apart, and names it behind the index.
_KINDS_OF_ITEMS = frozenset(
    (
        *("text", "tool_use", "tool_result", "thinking"),
        *("message", "function_call", "function_call_output", "reasoning"),
    )
)
