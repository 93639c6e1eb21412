"""docs/gateway-cases.md names tests and files: they must exist, and every case must be there once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gateway-cases.md").read_text()
CASES = [1, 2, 5, 6, 8, 10, 11, 12, 14, 15, 17, 18, 20, 22, 23, 24, 25, 26, 28, 29, 31, 32, 33, 35, 36, 37, 39, 40]
CASES += [42, 43, 45, 47, 48, 49, 50, 51, 53, 54, 56, 58, 59, 60]


def functions_of(path: Path) -> set[str]:
    """The names of a module's test functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


def test_every_case_has_its_line() -> None:
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == CASES


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > len(CASES)
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(ROOT / "tests" / path)]
    assert not missing


def test_every_named_file_exists() -> None:
    assert all((ROOT / path).is_file() for path in re.findall(r"`((?:gateway|benchmarks)/[\w/]+\.py)`", PAGE))
