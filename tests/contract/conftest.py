"""Two real replicas of a tiny model; the gateway runs in each test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.gateway_harness import RunningGateway, running_gateway
from tests.helpers.replica_process import ReplicaProcess, replica
from tests.helpers.text_models import save_tiny_chat_model


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ReplicaProcess]]:
    """Started side by side; their model is called `tiny-chat`."""
    model: Path = save_tiny_chat_model(tmp_path_factory.mktemp("contract") / "tiny-chat")
    with ExitStack() as stack:
        started = [
            stack.enter_context(replica(model, tmp_path_factory.mktemp(f"replica{n}"), wait=False)) for n in range(2)
        ]
        for process in started:
            process.wait_ready()
        yield started


@pytest.fixture
async def gateway(replicas: list[ReplicaProcess]) -> AsyncIterator[RunningGateway]:
    """In front of both replicas, ready."""
    async with running_gateway([r.url for r in replicas]) as running:
        yield running
