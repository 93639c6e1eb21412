"""Completions and chat over HTTP: shapes, orders, and streams that add up to the whole answer."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.helpers.processes import until
from tests.helpers.replica_app import App, serving
from worker.ipc.messages import GenerateRequest, StopMatched
from worker.sampling_params import SamplingParams
from worker.server.sampling import SamplingDefaults
from worker.server.tokenizer import Tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
HARD = "👨‍👩‍👧 漢字 مرحبا STOPPED! 👍🏽"


def sent(app: App) -> list[GenerateRequest]:
    return [message for message in app.scheduler.received if isinstance(message, GenerateRequest)]


def contents(events: list[Any]) -> list[str]:
    """The text of each chat event that has some."""
    deltas = [choice["delta"] for event in events if event != "[DONE]" for choice in event["choices"]]
    return [delta["content"] for delta in deltas if delta.get("content")]


async def test_a_whole_chat_answer(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        answer = (await app.post(CHAT, messages=HI, max_tokens=100)).json()
    prompt_tokens = len(tokenizer.encode("<s>user: hi</s><s>assistant: ", add_special_tokens=False))
    completion_tokens = len(tokenizer.encode("hello")) + 1
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": 2,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_a_streamed_chat_answer_comes_in_order(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "ab") as app:
        *events, done = await app.events(CHAT, messages=HI, stream_options={"include_usage": True})
    assert done == "[DONE]"
    *chunks, usage = events
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in events} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in events}) == 1
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3


async def test_usage_is_streamed_only_on_request(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        for options in (None, {"include_usage": False}):
            events = await app.events(CHAT, messages=HI, stream_options=options)
            assert not any("usage" in event for event in events)


async def test_usage_may_be_streamed_by_default(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, stream_response_default_include_usage=True) as app:
        for options, wanted in ((None, True), ({}, True), ({"include_usage": False}, False)):
            for path, prompt in ((CHAT, {"messages": HI}), (TEXT, {"prompt": "hi"})):
                events = await app.events(path, **prompt, stream_options=options)
                assert any("usage" in event for event in events) == wanted


@pytest.mark.parametrize("stop", [None, "STOP", ["PPED", "OPP"], ["👍🏽"], ["no such", "PPES"]])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_streamed_deltas_add_up_to_the_whole_answer(
    tokenizer: Tokenizer, path: str, stop: str | list[str] | None
) -> None:
    prompt: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    async with serving(tokenizer, HARD) as app:
        whole = (await app.post(path, **prompt, stop=stop, max_tokens=200)).json()["choices"][0]
        *events, done = await app.events(path, **prompt, stop=stop, max_tokens=200)
    assert done == "[DONE]"
    choices: list[Any] = [choice for event in events for choice in event["choices"]]  # type: ignore[index,union-attr]
    pieces = contents(events) if path == CHAT else [choice["text"] for choice in choices]
    text = whole["message"]["content"] if path == CHAT else whole["text"]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert choices[-1]["finish_reason"] == whole["finish_reason"] == "stop"
    assert choices[-1]["matched_stop"] == whole["matched_stop"]
    expected = {"STOP": "👨‍👩‍👧 漢字 مرحبا ", "PPED": "👨‍👩‍👧 漢字 مرحبا ST", "👍🏽": HARD[:-2]}
    first = stop if isinstance(stop, str) else (stop or [""])[0]
    assert text == expected.get(first, HARD)


async def test_a_stop_string_ends_the_sequence_in_the_scheduler(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "say STOP and more and more") as app:
        answer = (await app.post(TEXT, prompt="hi", stop="STOP", max_tokens=200)).json()
        num_tokens = len(tokenizer.encode("say STOP"))
        [request] = app.scheduler.of_kind(GenerateRequest)
        assert isinstance(request, GenerateRequest) and request.rid.startswith(answer["id"])
        assert app.scheduler.of_kind(StopMatched) == [StopMatched(rid=request.rid, num_output_tokens=num_tokens)]
        assert app.scheduler.live == {}
    assert answer["choices"][0]["matched_stop"] == "STOP"
    assert answer["usage"]["completion_tokens"] == num_tokens


async def test_the_length_limit(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "hello world " * 20) as app:
        answer = (await app.post(TEXT, prompt="hi")).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 16  # the default of completions
        await app.post(CHAT, messages=HI)
        await app.post(CHAT, messages=HI, max_tokens=9, max_completion_tokens=7)
        assert [request.sampling.max_new_tokens for request in sent(app)] == [16, None, 7]


async def test_several_prompts_and_choices(tokenizer: Tokenizer) -> None:
    def echo(request: GenerateRequest) -> list[int]:
        return [*request.input_ids, 2]

    async with serving(tokenizer, echo) as app:
        answer = (await app.post(TEXT, prompt=["one", "two"], n=2, seed=2**63 - 1)).json()
        assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
        assert [request.sampling.seed for request in sent(app)] == [2**63 - 1, 0] * 2  # the copies differ
        assert answer["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(word)) for word in ("one", "two"))

        ids = tokenizer.encode("by ids")
        answer = (await app.post(TEXT, prompt=ids)).json()
        assert answer["choices"][0]["text"] == "by ids"
        answer = (await app.post(TEXT, prompt=[ids, ids[:2]])).json()
        assert [c["text"] for c in answer["choices"]] == ["by ids", "by"]

        *events, _ = await app.events(TEXT, prompt=["one", "two"], n=2)
        texts = dict.fromkeys(range(4), "")
        for event in events:
            for choice in event["choices"]:  # type: ignore[index,union-attr]
                texts[choice["index"]] += choice["text"]
        assert texts == {0: "one", 1: "one", 2: "two", 3: "two"}


async def test_sampling_fields_reach_the_scheduler(tokenizer: Tokenizer) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.3,
        "repetition_penalty": 1.1,
        "stop": ["x", "y"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "seed": -1,
        "max_tokens": 9,
        "min_tokens": 3,
    }
    async with serving(tokenizer) as app:
        await app.post(CHAT, messages=HI, **fields, priority=4, cache_salt="tenant")
        request = sent(app)[0]
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        repetition_penalty=1.1,
        stop=("x", "y"),
        stop_token_ids=(5,),
        ignore_eos=True,
        skip_special_tokens=False,
        no_stop_trim=True,
        seed=2**63 - 1,
        max_new_tokens=9,
        min_new_tokens=3,
    )
    assert (request.priority, request.extra_key) == (4, "tenant")


async def test_a_request_beats_the_model_and_the_model_the_constants(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, defaults=SamplingDefaults(temperature=0.6, top_k=20)) as app:
        await app.post(CHAT, messages=HI, temperature=0)
        sampling = sent(app)[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.0, 20, 1.0)


async def test_content_parts_and_the_developer_role(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]
    async with serving(tokenizer) as app:
        await app.post(CHAT, messages=messages)
        prompt = tokenizer.decode(sent(app)[0].input_ids, skip_special_tokens=False)
    assert prompt == "<s>system: be</s><s>user: ab</s><s>assistant: "


async def test_an_answer_can_be_continued(tokenizer: Tokenizer) -> None:
    messages = [*HI, {"role": "assistant", "content": "well"}]
    async with serving(tokenizer) as app:
        await app.post(CHAT, messages=messages, continue_final_message=True)
        prompt = tokenizer.decode(sent(app)[0].input_ids, skip_special_tokens=False)
    assert prompt == "<s>user: hi</s><s>assistant: well"


async def test_an_abort_before_the_first_token_has_its_http_status(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        app.scheduler.max_waiting = 0
        for stream in (False, True):
            response = await app.post(CHAT, messages=HI, stream=stream)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert response.json()["error"]["message"] == "The request queue is full."


async def test_a_fault_in_mid_stream_is_an_event_and_no_done_follows(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "abcdef") as app:
        app.scheduler.paused = True
        ask = asyncio.create_task(app.post(CHAT, messages=HI, stream=True, n=2))
        await until(lambda: len(app.scheduler.live) == 2, 5, "the scheduler has the request")
        for _ in range(2):
            app.scheduler.step()
            await asyncio.sleep(0.02)
        app.scheduler.fail_all(500, "The GPU is on fire.")
        response = await ask
        text = response.text
    assert response.status_code == 200
    events = text.split("\n\n")
    assert '"content":"b"' in text
    assert events[-1] == "" and "[DONE]" not in text
    assert events[-2].startswith('data: {"error":{"message":"The GPU is on fire.","type":"server_error"')
    assert text.count('"error"') == 1
    assert app.service.num_live == 0


async def test_stream_interval_gathers_tokens(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "abcdefgh", stream_interval=3) as app:
        events = await app.events(CHAT, messages=HI, max_tokens=50)
    assert contents(events) == ["a", "bcd", "efg", "h"]


async def test_ids(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        response = await app.client.post(CHAT, json={"messages": HI, "rid": "mine"}, headers={"x-request-id": "req-7"})
        assert (response.json()["id"], response.headers["x-request-id"]) == ("mine", "req-7")
        made = [(await app.post(CHAT, messages=HI)).headers["x-request-id"] for _ in range(2)]
        assert made[0] != made[1]
        response = await app.client.get("/nope", headers={"x-request-id": "bad id"})
        assert response.headers["x-request-id"] not in ("", "bad id")
        app.scheduler.paused = True
        first = asyncio.create_task(app.post(CHAT, messages=HI, rid="mine"))
        await until(lambda: app.scheduler.live, 5, "the scheduler has the request")
        second = await app.post(CHAT, messages=HI, rid="mine")
        assert (second.status_code, second.json()["error"]["param"]) == (400, "rid")
        app.scheduler.paused = False
        assert (await first).status_code == 200


async def test_the_official_client(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, HARD) as app:
        client = openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0)
        chat = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        assert chat.choices[0].message.content == HARD
        text = ""
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == HARD
        completion = await client.completions.create(model="tiny", prompt="hi", max_tokens=200)
        assert completion.choices[0].text == HARD
        assert [model.id async for model in await client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError) as fault:
            await client.completions.create(model="tiny", prompt="hi", temperature=-1)
        assert fault.value.param == "temperature"
        await client.close()
