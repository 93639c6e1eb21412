"""One real fleet for all tests with the marker `ray`: two replicas of a tiny model, gateway, Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.served_fleet import ServedFleet
from tests.helpers.text_models import save_tiny_chat_model


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory that loads at once; its answers are noise."""
    return save_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="module")
def served_fleet(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    """`canopy serve`, ready. Tests may kill any part of it, and leave when both replicas are ready again."""
    cache = tmp_path_factory.mktemp("cache")
    fleet = ServedFleet(str(tiny_chat_model), "--replicas", "2", "--port", "0", cache=cache)
    try:
        fleet.wait_until_serving()
        yield fleet
    finally:
        fleet.kill()
