"""Every fault a client can meet, and pydantic's faults as ours. worker/server/http.py makes HTTP answers of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import ValidationError

from common.errors import HttpFault


class RequestFault(HttpFault):
    """A request that this replica cannot serve."""


def from_validation(error: ValidationError) -> RequestFault:
    """The first fault pydantic found, as 400 with the path of the field. Of a union's branches the one that got
    furthest speaks."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    same_field = [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same_field, key=lambda each: len(each["loc"]))
    if first["type"] == "json_invalid":
        return RequestFault(400, f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    path = field_path(first["loc"])
    if first["type"] == "missing":
        return RequestFault(400, f"{path} is required.", param=path)
    same_place = [each["msg"] for each in same_field if field_path(each["loc"]) == path]
    return RequestFault(400, f"{path or 'The body'}: {_one_of(same_place)}.", param=path)


def _one_of(messages: Sequence[str]) -> str:
    """What a field may be: pydantic's sentence, or one out of those for each branch of a union."""
    plain = [_CLASS.sub("", message.removeprefix("Value error, ").rstrip(".")) for message in messages]
    first, *others = dict.fromkeys(plain)
    kinds = [message.removeprefix(_KIND) for message in (first, *others) if message.startswith(_KIND)]
    return _KIND + " or ".join(kinds) if first.startswith(_KIND) else first


def field_path(location: Sequence[int | str]) -> str | None:
    """`("messages", 0, "content")` -> `messages[0].content`. The union branches that pydantic names are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}" if path else part
    return path or None


_KIND = "Input should be "
_CLASS = re.compile(r" or instance of \w+$")
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict"})
