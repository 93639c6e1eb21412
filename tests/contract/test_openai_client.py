"""The official OpenAI client, pointed at the gateway in front of real replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.helpers.gateway_harness import RunningGateway

MODEL = "tiny-chat"
NO_EOS = {"ignore_eos": True}


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """Retries off: a request that fails must show."""
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    models = await client.models.list()
    assert [model.id for model in models.data] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=5, extra_body=NO_EOS
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=NO_EOS,
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="the answer", max_tokens=5, extra_body=NO_EOS)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


async def test_completions_stream(client: openai.AsyncOpenAI) -> None:
    greedy = {"model": MODEL, "prompt": "the answer", "max_tokens": 12, "temperature": 0.0, "extra_body": NO_EOS}
    whole = await client.completions.create(**greedy, stream=False)
    stream = await client.completions.create(**greedy, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_faults_become_the_client_s_exceptions(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="another", prompt="hello")
    with pytest.raises(openai.BadRequestError) as fault:
        await client.completions.create(model=MODEL, prompt="hello", max_tokens=-1)
    assert fault.value.param == "max_tokens"
