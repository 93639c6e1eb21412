"""Embeddings by the offline engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.embedding_models import MEAN, TinyEmbedder, save_tiny_embedder, write_steps
from worker import Engine
from worker.server.errors import RequestFault
from worker.server.tokenizer import Tokenizer

TEXTS = ["hello world", "the answer is", "👨‍👩‍👧 漢字"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyEmbedder:
    return save_tiny_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def engine(model: TinyEmbedder) -> Iterator[Engine]:
    with Engine(model_path=str(model.path), max_total_tokens=2000, cpu_threads=1) as engine:
        yield engine


def test_texts_and_ids(engine: Engine, model: TinyEmbedder) -> None:
    tokenizer = Tokenizer.load(str(model.path))
    many = engine.encode(TEXTS)
    assert isinstance(many, list)
    for text, one in zip(TEXTS, many, strict=True):
        np.testing.assert_allclose(one["embedding"], model.vector(tokenizer.encode(text)), rtol=0, atol=1e-5)
    one = engine.encode(input_ids=[5, 6, 7], dimensions=16)
    assert isinstance(one, dict) and one["meta_info"]["prompt_tokens"] == 3
    np.testing.assert_allclose(one["embedding"], model.vector([5, 6, 7], 16), rtol=0, atol=1e-5)


async def test_from_an_event_loop(engine: Engine, model: TinyEmbedder) -> None:
    one = await engine.async_encode(input_ids=[8, 9])
    assert isinstance(one, dict)
    np.testing.assert_allclose(one["embedding"], model.vector([8, 9]), rtol=0, atol=1e-5)


def test_what_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestFault, match="makes embeddings and no text; call encode"):
        engine.generate("hello")
    with pytest.raises(RequestFault, match="dimensions is 65"):
        engine.encode("hello", dimensions=65)
    with pytest.raises(RequestFault, match="must not be empty"):
        engine.encode(["hello", ""])
    with pytest.raises(RequestFault, match="longer than the model's context length"):
        engine.encode(input_ids=[5] * 257)


def test_a_generating_model_has_none(chat_model: Path) -> None:
    with (
        Engine(model_path=str(chat_model), max_total_tokens=200, cpu_threads=1) as engine,
        pytest.raises(RequestFault, match="generates text and makes no embeddings; call generate"),
    ):
        engine.encode("hello")


def test_new_weights_of_the_same_model(engine: Engine, model: TinyEmbedder, tmp_path: Path) -> None:
    """None of the vectors after it come from what was cached before it."""
    other = save_tiny_embedder(tmp_path, seed=8)
    for now in (other, model):
        engine.encode(input_ids=[5, 6, 7, 8])
        engine.update_weights_from_disk(str(now.path))
        one = engine.encode(input_ids=[5, 6, 7, 9])
        assert isinstance(one, dict) and one["meta_info"]["cached_tokens"] == 0
        np.testing.assert_allclose(one["embedding"], now.vector([5, 6, 7, 9]), rtol=0, atol=1e-5)
    assert np.abs(other.vector([5]) - model.vector([5])).max() > 0.01
    write_steps(other.path, pooling=MEAN)
    with pytest.raises(RequestFault, match="differs in pooling"):
        engine.update_weights_from_disk(str(other.path))
