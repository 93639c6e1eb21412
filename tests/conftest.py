"""Fixtures shared by the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import demo_model

LONG = ("model", "ray")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first, so that the processes of a parallel run end together."""
    items.sort(key=lambda item: min((LONG.index(mark) for mark in LONG if item.get_closest_marker(mark)), default=9))


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The converted demo model (config, safetensors, tokenizer, chat template)."""
    return demo_model.demo_model_dir()
