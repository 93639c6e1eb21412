"""The demo model behind a real gateway, for clients as people use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.helpers.demo_model import demo_model_dir
from tests.helpers.embedding_models import save_tiny_embedder
from tests.helpers.gateway_harness import RunningGateway, running_gateway
from tests.helpers.replica_process import ReplicaProcess, replica


@pytest.fixture(scope="session")
def demo_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    """One replica; the model's calls are read in Hermes's way."""
    flags = ("--served-model-name", "demo", "--tool-call-parser", "hermes", "--context-length", "2048")
    with replica(demo_model_dir(), tmp_path_factory.mktemp("demo"), *flags) as running:
        yield running


@pytest.fixture
async def gateway(demo_replica: ReplicaProcess) -> AsyncIterator[RunningGateway]:
    """In front of it, ready."""
    async with running_gateway([demo_replica.url]) as running:
        yield running
    assert demo_replica.is_clean()


@pytest.fixture
async def embedding_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """In front of a replica whose model, `tiny-embedder`, makes embeddings of 64 numbers."""
    model = save_tiny_embedder(tmp_path_factory.mktemp("embedder") / "tiny-embedder")
    with replica(model.path, tmp_path_factory.mktemp("embedding-replica")) as running:
        async with running_gateway([running.url]) as made:
            yield made
        assert running.is_clean()
