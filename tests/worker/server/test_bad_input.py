"""One table of everything a client can get wrong: where, what, and the error it must be told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.helpers.replica_app import App, serving
from worker.server.tokenizer import Tokenizer

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
HI = [{"role": "user", "content": "hi"}]
NAN, INF = float("nan"), float("inf")
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]

# path, fields changed in a good body, status, param
FAULTS: list[tuple[str, dict[str, Any], int, str | None]] = [
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": None}, 400, "messages"),
    (CHAT, {"messages": "hi"}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user"}, 5]}, 400, "messages[1]"),
    (CHAT, {"messages": [{"content": "hi"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "king", "content": "hi"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": IMAGE}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": ["hi"]}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "tool", "content": "hi"}]}, 400, "messages"),  # the template refuses it
    (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}, 400, "messages"),
    (CHAT, {"messages": [*HI, {"role": "assistant", "tool_calls": [{"id": "1"}]}]}, 400, "messages[1].tool_calls"),
    (CHAT, {"model": "other"}, 404, "model"),
    (CHAT, {"model": 5}, 400, "model"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT, {"max_tokens": -1}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 2.5}, 400, "max_tokens"),
    (CHAT, {"max_tokens": "5"}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 10**30}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 512}, 400, "max_tokens"),  # with the prompt over the context
    (CHAT, {"max_completion_tokens": 0}, 400, "max_completion_tokens"),
    (CHAT, {"max_tokens": 3, "min_tokens": 4}, 400, "min_tokens"),
    (CHAT, {"temperature": -0.1}, 400, "temperature"),
    (CHAT, {"temperature": NAN}, 400, "temperature"),
    (CHAT, {"temperature": INF}, 400, "temperature"),
    (CHAT, {"temperature": "hot"}, 400, "temperature"),
    (CHAT, {"temperature": True}, 400, "temperature"),
    (CHAT, {"top_p": 0}, 400, "top_p"),
    (CHAT, {"top_p": 1.1}, 400, "top_p"),
    (CHAT, {"top_p": NAN}, 400, "top_p"),
    (CHAT, {"top_k": 0}, 400, "top_k"),
    (CHAT, {"top_k": -2}, 400, "top_k"),
    (CHAT, {"min_p": -0.1}, 400, "min_p"),
    (CHAT, {"min_p": NAN}, 400, "min_p"),
    (CHAT, {"frequency_penalty": 2.1}, 400, "frequency_penalty"),
    (CHAT, {"presence_penalty": -2.1}, 400, "presence_penalty"),
    (CHAT, {"presence_penalty": NAN}, 400, "presence_penalty"),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty"),
    (CHAT, {"repetition_penalty": 2.5}, 400, "repetition_penalty"),
    (CHAT, {"seed": 2**63}, 400, "seed"),
    (CHAT, {"seed": 1.5}, 400, "seed"),
    (CHAT, {"n": 0}, 400, "n"),
    (CHAT, {"n": 129}, 400, "n"),
    (CHAT, {"stop": 5}, 400, "stop"),
    (CHAT, {"stop": [""]}, 400, "stop"),
    (CHAT, {"stop": ["x" * 257]}, 400, "stop"),
    (CHAT, {"stop": ["x"] * 17}, 400, "stop"),
    (CHAT, {"stop": ["ok", 5]}, 400, "stop[1]"),
    (CHAT, {"stop_token_ids": [301]}, 400, "stop_token_ids"),
    (CHAT, {"stop_token_ids": [-1]}, 400, "stop_token_ids"),
    (CHAT, {"stop_token_ids": [1] * 65}, 400, "stop_token_ids"),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"stream_options": {"include_usage": 5}}, 400, "stream_options.include_usage"),
    (CHAT, {"rid": ""}, 400, "rid"),
    (CHAT, {"rid": "x" * 257}, 400, "rid"),
    (CHAT, {"priority": 2**40}, 400, "priority"),
    (CHAT, {"chat_template_kwargs": 5}, 400, "chat_template_kwargs"),
    # what this server does not do
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice"),
    (CHAT, {"logprobs": True}, 400, "logprobs"),
    (CHAT, {"top_logprobs": 5}, 400, "top_logprobs"),
    (CHAT, {"logit_bias": {"5": 1.0}}, 400, "logit_bias"),
    (CHAT, {"response_format": {"type": "json_object"}}, 400, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format.type"),
    (CHAT, {"regex": "a+"}, 400, "regex"),
    (CHAT, {"lora_path": "x"}, 400, "lora_path"),
    (CHAT, {"modalities": ["text", "audio"]}, 400, "modalities"),
    (TEXT, {"prompt": None}, 400, "prompt"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [[]]}, 400, "prompt"),
    (TEXT, {"prompt": ["a", ""]}, 400, "prompt[1]"),
    (TEXT, {"prompt": ["a", 5]}, 400, "prompt"),
    (TEXT, {"prompt": [1, "a"]}, 400, "prompt"),
    (TEXT, {"prompt": {"text": "a"}}, 400, "prompt"),
    (TEXT, {"prompt": [True, False]}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 1025}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 100, "n": 11}, 400, "n"),
    (TEXT, {"prompt": [5, 301]}, 400, "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "prompt"),
    (TEXT, {"prompt": [10**30]}, 400, "prompt"),
    (TEXT, {"prompt": [[5], [301]]}, 400, "prompt[1]"),
    (TEXT, {"prompt": [5] * 512}, 400, "prompt"),  # context
    (TEXT, {"prompt": [5] * 300}, 400, "prompt"),  # pool
    (TEXT, {"prompt": "x" * 100_000}, 400, "prompt"),
    (TEXT, {"max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"echo": True}, 400, "echo"),
    (TEXT, {"logprobs": 0}, 400, "logprobs"),
    (TEXT, {"suffix": "x"}, 400, "suffix"),
    (TEXT, {"best_of": 2}, 400, "best_of"),
    (TEXT, {"model": "tiny:adapter"}, 404, "model"),
    (NATIVE, {"text": None}, 400, "text"),
    (NATIVE, {"input_ids": [5]}, 400, "text"),
    (NATIVE, {"text": 5}, 400, "text"),
    (NATIVE, {"text": []}, 400, "text"),
    (NATIVE, {"text": ""}, 400, "text"),
    (NATIVE, {"text": ["a", ""]}, 400, "text[1]"),
    (NATIVE, {"text": None, "input_ids": []}, 400, "input_ids"),
    (NATIVE, {"text": None, "input_ids": [5, "x"]}, 400, "input_ids[1]"),
    (NATIVE, {"text": None, "input_ids": [[5], []]}, 400, "input_ids[1]"),
    (NATIVE, {"text": None, "input_ids": [301]}, 400, "input_ids"),
    (NATIVE, {"text": None, "input_ids": [5] * 300}, 400, "input_ids"),
    (NATIVE, {"sampling_params": {"temperature": -1}}, 400, "sampling_params.temperature"),
    (NATIVE, {"sampling_params": {"max_tokens": 5}}, 400, "sampling_params.max_tokens"),  # misspelt
    (NATIVE, {"sampling_params": {"max_new_tokens": 0}}, 400, "sampling_params.max_new_tokens"),
    (NATIVE, {"sampling_params": {"min_new_tokens": 200}}, 400, "sampling_params.min_new_tokens"),
    (NATIVE, {"sampling_params": {"stop_token_ids": [301]}}, 400, "sampling_params.stop_token_ids"),
    (NATIVE, {"sampling_params": {"json_schema": "{}"}}, 400, "sampling_params.json_schema"),
    (NATIVE, {"sampling_params": [{}, {}]}, 400, "sampling_params"),
    (NATIVE, {"text": ["a", "b"], "sampling_params": [{}, {"top_p": 0}]}, 400, "sampling_params[1].top_p"),
    (NATIVE, {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, 400, "sampling_params"),
    (NATIVE, {"text": ["a", "b"], "rid": ["x", "x"]}, 400, "rid"),
    (NATIVE, {"text": ["a", "b"], "rid": ["x"]}, 400, "rid"),
    (NATIVE, {"return_logprob": True}, 400, "return_logprob"),
    (NATIVE, {"image_data": "x"}, 400, "image_data"),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": HI}, 400, "prompt"),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": [301]}, 400, "tokens"),
    ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
    ("/abort_request", {"rid": 5}, 400, "rid"),
]
GOOD: dict[str, dict[str, Any]] = {CHAT: {"messages": HI}, TEXT: {"prompt": "hi"}, NATIVE: {"text": "hi"}}


@pytest.fixture
async def app(tokenizer: Tokenizer) -> AsyncIterator[App]:
    async with serving(tokenizer, max_body_bytes=200_000) as app:
        yield app


def check_error(response: httpx.Response, status: int, param: str | None) -> str:
    """The answer is OpenAI's error object; its message."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert error["param"] == param
    message = error["message"]
    assert isinstance(message, str) and message.endswith(".")
    return message


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_fault_names_its_field(app: App, stream: bool) -> None:
    """One app for the whole table: a server per row would take most of a minute."""
    for path, change, status, param in FAULTS:
        body = GOOD.get(path, {}) | change
        if stream and "stream" not in change and path in GOOD:
            body["stream"] = True
        response = await app.client.post(path, content=json.dumps(body))  # writes NaN too, which strict writers refuse
        try:
            check_error(response, status, param)
        except AssertionError as error:
            raise AssertionError(f"{path} with {str(change)[:200]}") from error
    assert app.scheduler.received == []  # nothing faulty reached the scheduler
    assert app.service.num_live == 0


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
