"""A tiny model that real replicas serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.text_models import save_tiny_chat_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat-model"))
