"""--skip-tokenizer-init: token ids in and out, and every text refused with a sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.replica_app import App, serving
from worker.config import WorkerSettings
from worker.server.service import ModelFiles
from worker.server.tokenizer import NO_TEXTS, NoTokenizer

ANSWER = [11, 12, 13, 2]


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with serving(NoTokenizer(), ANSWER, skip_tokenizer_init=True) as running:
        yield running


def test_no_tokenizer_file_is_read(tmp_path: Path) -> None:
    files = ModelFiles.load(str(tmp_path), WorkerSettings(model_path="m", skip_tokenizer_init=True))
    assert isinstance(files.tokenizer, NoTokenizer)


async def test_ids_in_and_ids_out(app: App) -> None:
    answer = (await app.post("/generate", input_ids=[5, 6], sampling_params={"temperature": 0})).json()
    assert answer["output_ids"] == ANSWER and "text" not in answer
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert answer["meta_info"]["prompt_tokens"] == 2
    batch = (await app.post("/generate", input_ids=[[5], [6]])).json()
    assert [each["output_ids"] for each in batch] == [ANSWER, ANSWER]
    *events, done = await app.events("/generate", input_ids=[5, 6])
    assert done == "[DONE]"
    assert [e["output_ids"] for e in events if isinstance(e, dict)][-1] == ANSWER


async def test_completions_take_ids_and_say_ids(app: App) -> None:
    answer = (await app.post("/v1/completions", prompt=[5, 6], max_tokens=9)).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("", ANSWER, "stop")
    assert answer["usage"]["completion_tokens"] == 4
    *events, done = await app.events("/v1/completions", prompt=[5, 6], max_tokens=9)
    assert done == "[DONE]"
    choices: list[Any] = [e["choices"][0] for e in events if isinstance(e, dict)]  # type: ignore[index]
    assert sum((c["token_ids"] for c in choices), []) == ANSWER
    assert [c["finish_reason"] for c in choices][-1] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/generate", {"text": "hello"}, "text"),
        ("/v1/completions", {"prompt": "hello"}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, "messages"),
        ("/tokenize", {"prompt": "hello"}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "hello"}]}, "messages"),
        ("/detokenize", {"tokens": [5]}, "tokens"),
    ],
)
async def test_texts_are_refused(app: App, path: str, body: dict[str, Any], param: str) -> None:
    response = await app.post(path, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["message"], error["param"]) == (NO_TEXTS, param)
    assert app.scheduler.requests == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/generate", {"input_ids": [5], "sampling_params": {"stop": "x"}}, "sampling_params.stop"),
        ("/generate", {"input_ids": [5], "sampling_params": {"min_new_tokens": 2}}, "sampling_params.min_new_tokens"),
        ("/v1/completions", {"prompt": [5], "stop": ["x"]}, "stop"),
        ("/v1/completions", {"prompt": [5], "min_tokens": 2}, "min_tokens"),
    ],
)
async def test_what_needs_a_tokenizer_is_refused(app: App, path: str, body: dict[str, Any], param: str) -> None:
    response = await app.post(path, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "--skip-tokenizer-init" in response.json()["error"]["message"]


async def test_health_needs_no_tokenizer(app: App) -> None:
    assert (await app.client.get("/health_generate")).status_code == 200
