"""Types of settings that users may write in more than one way: counts as 8k or 1M, JSON objects as text."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG])")
_FACTORS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}


def parse_count(value: Any) -> Any:
    """`8k` = 8000, `8K` = 8192, likewise m and M, g and G; all else as it is. Raises ValueError for half a token."""
    match = _COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    number = float(match[1]) * _FACTORS[match[2]]
    if number != int(number):
        raise ValueError(f"{value} is not a whole number")
    return int(number)


def parse_json_object(value: Any) -> Any:
    """The object that JSON text holds; a mapping from YAML as it is. Raises ValueError for other text."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError("give a JSON object: {...}")
    return parsed


TokenCount = Annotated[int, BeforeValidator(parse_count)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(parse_json_object)]
