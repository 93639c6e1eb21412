"""Counts and JSON objects as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings.types import parse_count, parse_json_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("8k", 8000), ("8K", 8192), ("1m", 10**6), ("1M", 2**20), ("2g", 2 * 10**9), ("1G", 2**30)],
        *[("1.5k", 1500), ("25.6k", 25_600), ("0.5K", 512), (" 4k ", 4000)],
    ],
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("value", ["12", "k", "-1", "8kb", "8 k", "1e3k", "", 7, None, 1.5, [1]])
def test_what_is_no_short_count_is_left_to_others(value: object) -> None:
    assert parse_count(value) is value


@given(st.integers(0, 10**9), st.sampled_from("kKmMgG"))
def test_whole_counts_are_exact(number: int, unit: str) -> None:
    factor = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}[unit]
    assert parse_count(f"{number}{unit}") == number * factor


def test_half_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.2345k is not a whole number"):
        parse_count("1.2345k")


def test_objects() -> None:
    assert parse_json_object('{"a": {"b": 1}}') == {"a": {"b": 1}}
    assert parse_json_object({"a": 1}) == {"a": 1}
    for text in ("[1]", "1", "null", "{", "a: b"):
        with pytest.raises(ValueError, match="JSON"):
            parse_json_object(text)
