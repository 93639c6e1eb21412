"""Marks every test here `gpu`, skips it where there is none, and hands out the device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available() and not (_INTERPRETED and item.path.name == "test_kernels.py"):
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


@pytest.fixture
def device() -> torch.device:
    """The GPU, or the CPU where Triton interprets."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
