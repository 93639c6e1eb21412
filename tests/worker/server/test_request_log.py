"""What --log-requests writes, level by level, as text and as JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.helpers.replica_app import App, serving
from worker.server.request_log import START_CHARACTERS
from worker.server.tokenizer import NoTokenizer, Tokenizer

LOGGER = "worker.server.request_log"


async def lines(tokenizer: Tokenizer | NoTokenizer, caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    """The log of one request."""
    caplog.set_level(logging.INFO, LOGGER)
    skip = isinstance(tokenizer, NoTokenizer)
    answer: Any = [11, 2] if skip else "hello"
    async with serving(tokenizer, answer, skip_tokenizer_init=skip, **settings) as app:
        await ask(app)
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def ask(app: App) -> None:
    prompt = [5, 6] if isinstance(app.tokenizer, NoTokenizer) else "the answer"
    body = {"prompt": prompt, "rid": "r1", "max_tokens": 9, "temperature": 0.25, "cache_salt": "secret-salt"}
    headers = {"authorization": "Bearer secret-key", "x-request-id": "q1"}
    response = await app.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200


async def test_off_it_writes_nothing(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    assert await lines(tokenizer, caplog) == []


async def test_level_0_has_ids_and_counts(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    received, finished = await lines(tokenizer, caplog, log_requests=True, log_requests_level=0)
    num_prompt = len(tokenizer.encode("the answer"))
    assert received == f"RequestReceived: rid='r1', request_id='q1', prompt_tokens={num_prompt}"
    assert finished.startswith(
        f"RequestFinished: rid='r1', request_id='q1', finish_reason='stop', prompt_tokens={num_prompt}, cached_tokens="
    )
    assert "e2e_latency_s=" in finished
    assert not any(word in received + finished for word in ("0.25", "the answer", "hello"))


async def test_level_1_adds_sampling_parameters(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    both = await lines(tokenizer, caplog, log_requests=True, log_requests_level=1)
    assert all("'temperature': 0.25" in line for line in both)
    assert not any(word in "".join(both) for word in ("the answer", "hello"))


@pytest.mark.parametrize("level", [2, 3])
async def test_levels_2_and_3_add_texts(level: int, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    received, finished = await lines(tokenizer, caplog, log_requests=True, log_requests_level=level)
    assert received.endswith("prompt='the answer'")
    assert finished.endswith("answer='hello'")
    assert "secret" not in received + finished


@pytest.mark.parametrize(("level", "whole"), [(2, False), (3, True)])
async def test_only_level_3_has_all_of_a_long_text(
    level: int, whole: bool, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    text = "stop and " * 400
    settings = {"log_requests": True, "log_requests_level": level, "allow_auto_truncate": True}
    async with serving(tokenizer, text, **settings) as app:
        await app.post("/generate", text="hello", sampling_params={"max_new_tokens": None})
    finished = caplog.messages[-1]
    shown = finished.partition("answer='")[2].rstrip("'")
    assert shown == (text if whole else text[:START_CHARACTERS])


async def test_without_a_tokenizer_ids_stand_for_texts(caplog: pytest.LogCaptureFixture) -> None:
    received, finished = await lines(NoTokenizer(), caplog, log_requests=True)
    assert received.endswith("prompt=[5, 6]")
    assert finished.endswith("answer=[11, 2]")


async def test_json(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    received, finished = map(json.loads, await lines(tokenizer, caplog, log_requests=True, log_requests_format="json"))
    assert (received["event"], received["rid"], received["prompt"]) == ("RequestReceived", "r1", "the answer")
    assert (finished["event"], finished["finish_reason"], finished["answer"]) == ("RequestFinished", "stop", "hello")
    assert finished["sampling_params"]["temperature"] == 0.25
    assert (received["request_id"], finished["request_id"]) == ("q1", "q1")
    assert finished["e2e_latency_s"] >= 0 and finished["message"] is None


async def test_an_abort_is_told_with_its_reason(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with serving(tokenizer, log_requests=True) as app:
        app.scheduler.max_waiting = 0
        assert (await app.post("/v1/completions", prompt="a")).status_code == 503
    assert "finish_reason='abort', message='The request queue is full.'" in caplog.messages[-1]
