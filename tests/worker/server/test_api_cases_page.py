"""docs/api-cases.md names tests: they must exist, and every case must be there once."""

from __future__ import annotations

import re
from pathlib import Path

from tests.gateway.test_cases_page import functions_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "api-cases.md").read_text()
CASES = [40076, 7670, 4481, 9315, 3910, 12081, 2876, 8831, 3832, 6888, 11970, 36333, 37833, 36475, 31765, 954, 7708]
CASES += [34214, 2955, 28456, 31954, 10063, 26248, 4574, 4578, 7639, 6803, 11401, 4244, 7565, 31802]


def test_every_case_has_its_line() -> None:
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == CASES


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(ROOT / "tests" / path)]
    assert not missing
