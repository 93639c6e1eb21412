"""A tour of the API with each client that people use: whole answers, streams, tools, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.helpers.gateway_harness import RunningGateway

pytestmark = [pytest.mark.clients, pytest.mark.model]

ASK = "Say hello."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def url(gateway: RunningGateway) -> str:
    return f"http://127.0.0.1:{gateway.port}"


async def test_openai(gateway: RunningGateway) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url(gateway)}/v1", api_key="none", max_retries=0, timeout=120)
    ask: Any = {"model": "demo", "messages": [{"role": "user", "content": ASK}], "max_tokens": 8, "temperature": 0}
    whole = (await client.chat.completions.create(**ask)).choices[0].message.content
    stream = await client.chat.completions.create(**ask, stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == whole
    called = await client.chat.completions.create(**(ask | {"max_tokens": 60}), tools=[TOOL], tool_choice=NAMED)
    calls = called.choices[0].message.tool_calls or []
    assert called.choices[0].finish_reason == "tool_calls"
    assert list(json.loads(calls[0].function.arguments)) == ["city"]  # type: ignore[union-attr]
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}}
    chosen = await client.chat.completions.create(**ask, response_format=form)
    assert json.loads(chosen.choices[0].message.content or "") in ("a", "b")
    completion = await client.completions.create(model="demo", prompt="1 2 3", max_tokens=4, logprobs=2, n=2)
    assert len(completion.choices) == 2
    response = await client.responses.create(model="demo", input=ASK, max_output_tokens=8, temperature=0)
    assert response.output_text.strip() == (whole or "").strip()
    events = await client.responses.create(model="demo", input=ASK, max_output_tokens=8, temperature=0, stream=True)
    kinds, text = [], ""
    async for event in events:
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == response.output_text and kinds[0] == "response.created"
    assert kinds[-1] == f"response.{response.status}"
    assert "demo" in [model.id async for model in await client.models.list()]
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**(ask | {"temperature": -1}))
    with pytest.raises(openai.BadRequestError):
        await client.embeddings.create(model="demo", input="hi")
    await client.close()


async def test_anthropic(gateway: RunningGateway) -> None:
    anthropic = pytest.importorskip("anthropic", reason="make test-clients installs it")
    client = anthropic.AsyncAnthropic(base_url=url(gateway), api_key="none", max_retries=0, timeout=120)
    ask: Any = {"model": "demo", "messages": [{"role": "user", "content": ASK}], "max_tokens": 8}
    ask["extra_body"] = {"temperature": 0}  # the client has no such argument any more
    whole = await client.messages.create(**ask, system="Be brief.")
    assert whole.stop_reason in ("max_tokens", "end_turn") and whole.usage.output_tokens <= 8
    async with client.messages.stream(**ask, system="Be brief.") as stream:
        assert await stream.get_final_text() == whole.content[0].text
    tool = {"name": "weather", "input_schema": TOOL["function"]["parameters"]}
    choice = {"type": "tool", "name": "weather"}
    called = await client.messages.create(**(ask | {"max_tokens": 60}), tools=[tool], tool_choice=choice)
    assert called.stop_reason == "tool_use" and list(called.content[-1].input) == ["city"]
    assert (await client.messages.count_tokens(model="demo", messages=ask["messages"])).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.create(**(ask | {"max_tokens": 0}))
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**(ask | {"model": "other"}))
    await client.close()


@pytest.mark.filterwarnings("ignore")  # the library's own
async def test_litellm(gateway: RunningGateway) -> None:
    litellm = pytest.importorskip("litellm", reason="make test-clients installs it")
    where: Any = {"model": "openai/demo", "api_base": f"{url(gateway)}/v1", "api_key": "none"}
    ask: Any = where | {"messages": [{"role": "user", "content": ASK}], "max_tokens": 8, "temperature": 0}
    whole = (await litellm.acompletion(**ask)).choices[0].message.content
    stream = await litellm.acompletion(**ask, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == whole
    called = await litellm.acompletion(**(ask | {"max_tokens": 60}), tools=[TOOL], tool_choice=NAMED)
    assert called.choices[0].message.tool_calls[0].function.name == "weather"
    with pytest.raises(litellm.BadRequestError):
        await litellm.acompletion(**(ask | {"temperature": -1}))


@pytest.mark.filterwarnings("ignore")  # the library's own
async def test_langchain(gateway: RunningGateway) -> None:
    module = pytest.importorskip("langchain_openai", reason="make test-clients installs it")
    chat = module.ChatOpenAI(
        model="demo", base_url=f"{url(gateway)}/v1", api_key="none", max_tokens=60, temperature=0, max_retries=0
    )
    whole = (await chat.ainvoke(ASK)).content
    assert "".join([chunk.content async for chunk in chat.astream(ASK)]) == whole
    called = await chat.bind_tools([TOOL], tool_choice="weather").ainvoke(ASK)
    assert called.tool_calls[0]["name"] == "weather" and list(called.tool_calls[0]["args"]) == ["city"]


async def test_curl(gateway: RunningGateway) -> None:
    async def curl(path: str, body: dict[str, Any]) -> str:
        process = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "-N", "-m", "120", f"{url(gateway)}{path}", "-H", "content-type: application/json"),
            *("-d", json.dumps(body)),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()

    ask = {"model": "demo", "messages": [{"role": "user", "content": ASK}], "max_tokens": 8}
    assert json.loads(await curl("/v1/chat/completions", ask))["object"] == "chat.completion"
    assert (await curl("/v1/chat/completions", ask | {"stream": True})).endswith("data: [DONE]\n\n")
    assert json.loads(await curl("/v1/messages", ask))["type"] == "message"
    assert "event: message_stop" in await curl("/v1/messages", ask | {"stream": True})
    assert json.loads(await curl("/v1/messages", {"model": "demo"}))["type"] == "error"
    assert json.loads(await curl("/generate", {"text": "1 2", "sampling_params": {"max_new_tokens": 4}}))["text"]


@pytest.mark.filterwarnings("ignore")  # the libraries' own
async def test_embeddings(embedding_gateway: RunningGateway) -> None:
    import openai

    base, texts = f"{url(embedding_gateway)}/v1", ["hello world", "stop", "the answer"]
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
        packed = (await client.embeddings.create(model="tiny-embedder", input=texts)).data
        plain = (await client.embeddings.create(model="tiny-embedder", input=texts, encoding_format="float")).data
        short = (await client.embeddings.create(model="tiny-embedder", input=texts[0], dimensions=8)).data
    vectors = [item.embedding for item in packed]
    np.testing.assert_allclose([item.embedding for item in plain], vectors, atol=1e-5)
    assert len(short[0].embedding) == 8 and {len(vector) for vector in vectors} == {64}
    module = pytest.importorskip("langchain_openai", reason="make test-clients installs it")
    ask: Any = {"model": "tiny-embedder", "base_url": base, "api_key": "none", "check_embedding_ctx_length": False}
    async with httpx.AsyncClient() as http:  # one that is closed
        chain = module.OpenAIEmbeddings(**ask, http_async_client=http, max_retries=0)
        np.testing.assert_allclose(await chain.aembed_documents(texts), vectors, atol=1e-5)
