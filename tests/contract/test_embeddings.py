"""A real embedding replica behind the gateway: the OpenAI client, and a batch, against Transformers' vectors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from deploy.batch.command import main
from tests.helpers.embedding_models import TinyEmbedder, save_tiny_embedder
from tests.helpers.gateway_harness import RunningGateway, running_gateway
from tests.helpers.replica_process import ReplicaProcess, replica
from worker.server.tokenizer import Tokenizer

pytestmark = pytest.mark.long

MODEL = "tiny-embedder"
TEXTS = [f"text number {n}, " + "and so on " * (n % 7) for n in range(40)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> TinyEmbedder:
    return save_tiny_embedder(tmp_path_factory.mktemp("embedder") / MODEL)


@pytest.fixture(scope="module")
def running(embedder: TinyEmbedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    with replica(embedder.path, tmp_path_factory.mktemp("replica"), "--max-total-tokens", "4k") as process:
        yield process
        assert process.is_clean()


@pytest.fixture
async def gateway(running: ReplicaProcess) -> AsyncIterator[RunningGateway]:
    async with running_gateway([running.url]) as made:
        yield made


@pytest.fixture(scope="module")
def expected(embedder: TinyEmbedder) -> list[np.ndarray]:
    tokenizer = Tokenizer.load(str(embedder.path))
    return [embedder.vector(tokenizer.encode(text)) for text in TEXTS]


def address(gateway: RunningGateway) -> str:
    return f"http://127.0.0.1:{gateway.port}"


async def test_the_openai_client(gateway: RunningGateway, expected: list[np.ndarray], embedder: TinyEmbedder) -> None:
    async with openai.AsyncOpenAI(base_url=f"{address(gateway)}/v1", api_key="none", max_retries=0) as client:
        packed = await client.embeddings.create(model=MODEL, input=TEXTS)  # base64, by the client's own default
        for item, vector in zip(packed.data, expected, strict=True):
            np.testing.assert_allclose(item.embedding, vector, rtol=0, atol=1e-5)
        assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
        plain = await client.embeddings.create(
            model=MODEL, input=[5, 6, 7], encoding_format="float", dimensions=16, user="u"
        )
        np.testing.assert_allclose(plain.data[0].embedding, embedder.vector([5, 6, 7], 16), rtol=0, atol=1e-5)
        with pytest.raises(openai.BadRequestError, match="makes embeddings and no text"):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError, match="dimensions is 65"):
            await client.embeddings.create(model=MODEL, input="a", dimensions=65)
    assert gateway.metric("prompt_tokens_total") > 0


async def test_many_at_once_equal_each_alone(gateway: RunningGateway, expected: list[np.ndarray]) -> None:
    bodies = [{"model": MODEL, "input": text} for text in TEXTS]
    answers = await asyncio.gather(*(gateway.client.post("/v1/embeddings", json=body) for body in bodies))
    for answer, vector in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer.json()["data"][0]["embedding"], vector, rtol=0, atol=1e-5)


async def test_a_batch_file(gateway: RunningGateway, expected: list[np.ndarray], tmp_path: Path) -> None:
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": text}}
        for n, text in enumerate(TEXTS)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = [str(tmp_path / name) for name in ("in.jsonl", "out.jsonl")]
    code = await asyncio.to_thread(main, [*files, "--base-url", address(gateway), "--no-progress"], {})
    assert code == 0
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(len(TEXTS)))
    for answer in answers:
        embedding = answer["response"]["body"]["data"][0]["embedding"]
        np.testing.assert_allclose(embedding, expected[int(answer["custom_id"])], rtol=0, atol=1e-5)


def test_the_replica_says_what_it_is(running: ReplicaProcess) -> None:
    info = httpx.get(f"{running.url}/get_model_info", timeout=10).json()
    assert (info["is_generation"], info["embedding_size"]) == (False, 64)
    assert httpx.get(f"{running.url}/health_generate", timeout=30).status_code == 200
