"""/v1/embeddings and /encode: what goes in, what comes out, what is refused, and what such a model does not do."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.mutated_bodies import EMBEDDING, GOOD, judge, mutated
from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import App, serving
from worker.ipc.messages import GenerateRequest
from worker.server.tokenizer import Tokenizer

PATH = "/v1/embeddings"


def vector(ids: list[int]) -> npt.NDArray[np.float32]:
    """Not 1 long, and different for different prompts."""
    return np.array([3.0, len(ids), sum(ids), -ids[-1]], np.float32)


def unit(ids: list[int], dimensions: int | None = None) -> npt.NDArray[np.float32]:
    cut = vector(ids)[:dimensions]
    made: npt.NDArray[np.float32] = cut / np.linalg.norm(cut)
    return made


def answered(request: GenerateRequest) -> bytes:
    return vector(np.frombuffer(request.prompt_key, np.int32).tolist()).tobytes()


@pytest.fixture
async def app(tokenizer: Tokenizer) -> AsyncIterator[App]:
    async with serving(tokenizer, vector_of=answered) as made:
        yield made
        assert made.service.num_live == 0 and not made.scheduler.live


async def test_texts_and_token_ids(app: App, tokenizer: Tokenizer) -> None:
    texts = ["hello world", "stop"]
    ids = [tokenizer.encode(text) for text in texts]
    asked: list[tuple[Any, list[list[int]]]] = [
        (texts[0], ids[:1]),
        (texts, ids),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ]
    for given, expected in asked:
        answer = (await app.post(PATH, input=given, model="tiny", user="somebody")).json()
        assert (answer["object"], answer["model"]) == ("list", "tiny")
        assert [(item["object"], item["index"]) for item in answer["data"]] == [
            ("embedding", index) for index in range(len(expected))
        ]
        for item, one in zip(answer["data"], expected, strict=True):
            np.testing.assert_allclose(item["embedding"], unit(one), rtol=1e-6)
        tokens = sum(map(len, expected))
        assert answer["usage"] == {
            "prompt_tokens": tokens,
            "completion_tokens": 0,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": len(expected)},
        }


async def test_base64_says_the_same_to_the_last_bit(app: App) -> None:
    plain = (await app.post(PATH, input=[5, 6, 7], encoding_format="float")).json()["data"][0]["embedding"]
    packed = (await app.post(PATH, input=[5, 6, 7], encoding_format="base64")).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == np.array(plain, np.float32).tolist()


@pytest.mark.parametrize("dimensions", [1, 3, 4, None])
async def test_dimensions_are_cut_before_the_length_is_made_one(app: App, dimensions: int | None) -> None:
    answer = (await app.post(PATH, input=[5, 6, 7], dimensions=dimensions)).json()
    embedding = answer["data"][0]["embedding"]
    assert len(embedding) == (dimensions or 4) and abs(np.linalg.norm(embedding) - 1) < 1e-6
    np.testing.assert_allclose(embedding, unit([5, 6, 7], dimensions), rtol=1e-6)


async def test_zeros_stay_zeros(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, vector_of=lambda request: bytes(16)) as app:
        assert (await app.post(PATH, input="a")).json()["data"][0]["embedding"] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": [[]]}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input"),
        ({"input": [[5], []]}, 400, "input"),
        ({"input": ["a", 5]}, 400, "input"),
        ({"input": [[5], "a"]}, 400, "input"),
        ({"input": [1.5]}, 400, "input"),
        ({"input": {"text": "a"}}, 400, "input"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": [301]}, 400, "input"),
        ({"input": [[5], [-1]]}, 400, "input[1]"),
        ({"input": [5] * 513}, 400, "input"),
        ({"input": "hello " * 4000}, 400, "input"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "dimensions": 5}, 400, "dimensions"),
        ({"input": "a", "dimensions": "4"}, 400, "dimensions"),
        ({"input": "a", "dimensions": 10**30}, 400, "dimensions"),
        ({"input": "a", "model": "other"}, 404, "model"),
        ({"input": "a", "lora_path": "x"}, 400, "lora_path"),
    ],
)
async def test_what_is_refused(app: App, body: dict[str, Any], status: int, param: str) -> None:
    check_error(await app.post(PATH, **body), status, param)
    assert app.scheduler.requests == []


async def test_a_text_as_long_as_the_context_fits(app: App) -> None:
    """As far as the pool holds it: nothing follows it."""
    ready = app.service.serving.ready
    assert ready.max_req_input_len < ready.context_len
    assert "exceeds the maximum" in check_error(await app.post(PATH, input=[5] * 512), 400, "input")
    assert (await app.post(PATH, input=[5] * 290)).status_code == 200


@pytest.mark.parametrize(("given", "kept"), [([5] * 400 + [2], [5] * 289 + [2]), ([5] * 400, [5] * 290), ([2], [2])])
async def test_a_text_that_is_cut_keeps_its_end_mark(tokenizer: Tokenizer, given: list[int], kept: list[int]) -> None:
    async with serving(tokenizer, vector_of=answered, allow_auto_truncate=True) as app:
        embedding = (await app.post(PATH, input=given)).json()["data"][0]["embedding"]
        np.testing.assert_allclose(embedding, unit(kept), rtol=1e-6)


async def test_what_an_embedding_model_does_not_do(app: App) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses"):
        assert "'tiny' makes embeddings and no text" in check_error(await app.post(path, **GOOD[path]), 400, "model")
    refused = await app.post("/v1/messages", **GOOD["/v1/messages"])
    assert (refused.status_code, refused.json()["type"]) == (400, "error")
    assert (await app.post("/tokenize", prompt="hello")).status_code == 200
    assert app.scheduler.requests == []


@pytest.mark.parametrize("path", EMBEDDING)
async def test_what_a_generating_model_does_not_do(tokenizer: Tokenizer, path: str) -> None:
    async with serving(tokenizer) as app:
        message = check_error(await app.post(path, **EMBEDDING[path]), 400, "model")
        assert "'tiny' generates text and makes no embeddings" in message


async def test_it_says_what_it_is(app: App, tokenizer: Tokenizer) -> None:
    info = (await app.client.get("/get_model_info")).json()
    assert (info["is_generation"], info["embedding_size"]) == (False, 4)
    assert (await app.client.get("/v1/models")).json()["data"][0]["task"] == "embed"
    assert (await app.client.get("/server_info")).json()["embedding_size"] == 4
    assert (await app.client.get("/v1/hot_prefixes")).json()["prefixes"] == []
    async with serving(tokenizer) as other:
        info = (await other.client.get("/get_model_info")).json()
        assert (info["is_generation"], info["embedding_size"]) == (True, None)
        assert (await other.client.get("/v1/models/tiny")).json()["task"] == "generate"


async def test_the_native_form(app: App, tokenizer: Tokenizer) -> None:
    one = (await app.post("/encode", text="hello", dimensions=2)).json()
    np.testing.assert_allclose(one["embedding"], unit(tokenizer.encode("hello"), 2), rtol=1e-6)
    assert one["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    assert one["meta_info"]["prompt_tokens"] == len(tokenizer.encode("hello"))
    many = (await app.post("/encode", input_ids=[[5, 6], [7]], rid=["a", "b"])).json()
    assert [each["meta_info"]["id"] for each in many] == ["a", "b"]
    np.testing.assert_allclose(many[1]["embedding"], unit([7]), rtol=1e-6)
    check_error(await app.post("/encode", text=["a", ""]), 400, "text")
    check_error(await app.post("/encode", text="a", input_ids=[5]), 400, "text")
    check_error(await app.post("/encode", text="a", dimensions=5), 400, "dimensions")


async def test_it_is_counted_with_its_end_as_its_first_token(app: App) -> None:
    assert (await app.post(PATH, input=[[5, 6], [7]])).status_code == 200
    metrics = (await app.client.get("/metrics")).text
    assert 'canopy_num_requests_total{model_name="tiny",stream="false"} 2.0' in metrics
    assert 'canopy_time_to_first_token_seconds_count{model_name="tiny",stream="false"} 2.0' in metrics
    assert 'canopy_prompt_tokens_total{model_name="tiny",stream="false"} 3.0' in metrics
    assert 'canopy_generation_tokens_total{model_name="tiny",stream="false"} 0.0' in metrics
    assert (await app.client.get("/v1/loads")).json()["ttft"]["counts"][-1] == 2


async def test_nearly_right_bodies(app: App) -> None:
    statuses, wrong = set[int](), []
    for path, good in EMBEDDING.items():
        assert (await app.client.post(path, json=good)).status_code == 200
        for body in mutated(path, 1, 15):
            response = await app.client.post(path, content=body)
            statuses.add(response.status_code)
            if fault := judge(response.status_code, response.text):
                wrong.append(f"{path} {body[:500]!r}: {fault}")
    assert not wrong, "\n".join(wrong)
    assert {200, 400} <= statuses
