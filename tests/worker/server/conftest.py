"""Tokenizers that take a moment to make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.text_models import save_tokenizer
from worker.server.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(str(tokenizer_dir))
