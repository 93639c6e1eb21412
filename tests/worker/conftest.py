"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.helpers.tiny_models import TinyModel


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Tiny checkpoints by name of tests.helpers.tiny_models.TINY_CONFIGS, each built once."""
    from tests.helpers.tiny_models import build_tiny  # Transformers' modelling code takes seconds to import

    built: dict[str, TinyModel] = {}

    def get(name: str) -> TinyModel:
        if name not in built:
            built[name] = build_tiny(name, tmp_path_factory.mktemp(name))
        return built[name]

    return get


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Tiny checkpoints by name of tests.helpers.other_models.OTHER_CONFIGS, each built once."""
    from tests.helpers.other_models import OTHER_CONFIGS
    from tests.helpers.tiny_models import save_tiny

    return cache(lambda name: save_tiny(OTHER_CONFIGS[name], tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer and a chat template."""
    from tests.helpers.text_models import save_tiny_chat_model

    return save_tiny_chat_model(tmp_path_factory.mktemp("chat-model"))
