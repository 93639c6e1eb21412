"""Fixtures shared by the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import demo_model


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The converted demo model (config, safetensors, tokenizer, chat template)."""
    return demo_model.demo_model_dir()
