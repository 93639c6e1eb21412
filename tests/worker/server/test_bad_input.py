"""Bodies that are none, prompts too long, clients that leave: faults beyond single fields (test_bad_input_table.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import App, serving
from worker.server.tokenizer import Tokenizer

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def app(tokenizer: Tokenizer) -> AsyncIterator[App]:
    async with serving(tokenizer, max_body_bytes=200_000) as app:
        yield app


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"\xff\xfe", b"{}}", b'{"prompt": "\\ud800"}', b"[" * 5000])
async def test_a_body_that_is_no_json(app: App, body: bytes) -> None:
    response = await app.client.post(TEXT, content=body)
    assert "not valid JSON" in check_error(response, 400, None)


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"5", b"null"])
async def test_a_body_that_is_no_object(app: App, body: bytes) -> None:
    check_error(await app.client.post(TEXT, content=body), 400, None)


async def test_a_content_type_that_is_no_json(app: App) -> None:
    response = await app.client.post(TEXT, content=b'{"prompt":"a"}', headers={"content-type": "text/plain"})
    assert "application/json" in check_error(response, 400, None)


async def test_a_body_too_large(app: App) -> None:
    check_error(await app.post(TEXT, prompt="x" * 200_000), 413, None)


async def test_a_body_too_large_without_a_declared_length(app: App) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 50_000

    check_error(await app.client.post(TEXT, content=chunks()), 413, None)
    assert (await app.client.get("/health")).status_code == 200


async def test_unknown_routes_and_methods(app: App) -> None:
    check_error(await app.client.get("/nope"), 404, None)
    check_error(await app.client.get(CHAT), 405, None)
    check_error(await app.client.get("/v1/models/other"), 404, "model")


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ({"seed": 2**63}, "below 9223372036854775808"),
        ({"max_tokens": 2**31}, "at most 2147483647"),
        ({"presence_penalty": 3}, "at most 2"),
        ({"top_p": 0}, "above 0"),
    ],
)
async def test_bounds_are_written_out(app: App, field: dict[str, Any], rule: str) -> None:
    [name] = field
    message = check_error(await app.post(TEXT, prompt="hi", **field), 400, name)
    assert message == f"{name}: must be {rule}."


async def test_over_long_prompts_say_how_long(app: App) -> None:
    message = check_error(await app.post(TEXT, prompt=[5] * 600), 400, "prompt")
    assert message == "The input (600 tokens) is longer than the model's context length (512 tokens)."
    for path, body, param in (
        (TEXT, {"prompt": [5] * 100, "max_tokens": 500}, "max_tokens"),
        (CHAT, {"messages": HI, "max_tokens": 3, "max_completion_tokens": 511}, "max_completion_tokens"),
        (CHAT, {"messages": HI, "max_tokens": 511}, "max_tokens"),
        (NATIVE, {"input_ids": [5], "sampling_params": {"max_new_tokens": 600}}, "sampling_params.max_new_tokens"),
        (TEXT, {"prompt": [5] * 500}, "prompt"),  # no room for the 16 that nobody asked for
        (NATIVE, {"input_ids": [5] * 400}, "input_ids"),
    ):
        message = check_error(await app.post(path, **body), 400, param)
        assert message.startswith("Requested token count exceeds the model's maximum context length of 512 tokens")
    message = check_error(await app.post(TEXT, prompt=[5] * 300), 400, "prompt")
    assert message == "Input length (300 tokens) exceeds the maximum allowed length (290 tokens)."


async def test_auto_truncate_cuts_instead(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, allow_auto_truncate=True) as app:
        answer = (await app.post(TEXT, prompt=[5] * 600)).json()
        assert answer["usage"]["prompt_tokens"] == 290


async def test_null_means_default_and_unknown_fields_are_ignored(app: App) -> None:
    body = dict.fromkeys(["temperature", "top_p", "stop", "n", "seed", "tools", "logprobs", "stream", "max_tokens"])
    response = await app.post(CHAT, messages=HI, **body, store=True, metadata={"a": "b"}, never_heard_of=1)
    assert response.status_code == 200, response.text


async def test_before_and_after_its_life_it_is_unavailable(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, opened=False) as app:
        for path in ("/health", "/v1/models", "/v1/loads", "/server_info"):
            response = await app.client.get(path)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["type"] == "service_unavailable_error"
        assert (await app.post(CHAT, messages=HI)).status_code == 503


async def test_a_client_that_leaves_in_its_body_harms_nobody(app: App) -> None:
    host, port = app.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await app.post(TEXT, prompt="hi")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "allowed"),
    [
        (NATIVE, {"text": 5}, "text: must be a valid string or a valid array."),
        (NATIVE, {"input_ids": [5, "x"]}, "input_ids[1]: must be a valid integer or a valid array."),
        (
            NATIVE,
            {"text": "a", "sampling_params": 5},
            "sampling_params: must be an object or a valid array.",
        ),
        (TEXT, {"prompt": "a", "stop": 5}, "stop: must be a string or a list of strings."),
        (TEXT, {"prompt": "a", "max_tokens": "x"}, "max_tokens: must be a valid integer."),
        (CHAT, {"messages": []}, "messages: must not be empty."),
        (TEXT, {"prompt": "a", "temperature": -1}, "temperature: must be at least 0."),
        (TEXT, {"prompt": "a", "seed": 1.5}, "seed: must be a valid integer."),
        (TEXT, {"prompt": "a", "stop": ["a", 5]}, "stop[1]: must be a valid string."),
    ],
)
async def test_all_that_a_field_may_be_is_named(app: App, path: str, body: dict[str, Any], allowed: str) -> None:
    assert (await app.post(path, **body)).json()["error"]["message"] == allowed
