"""Anthropic's /v1/messages: the official client, streams, tools, stop sequences, errors in its shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.helpers.processes import until
from tests.helpers.replica_app import App, serving
from tests.helpers.tool_models import tool_tokenizer, written_call
from worker.server.tokenizer import Tokenizer

MESSAGES = "/v1/messages"
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "weather", "description": "Of a city", "input_schema": {"type": "object"}}
_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


async def events(app: App, **change: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each event."""
    response = await app.post(MESSAGES, **(BODY | change), stream=True)
    assert response.status_code == 200, response.text
    found = []
    for text in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = text.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert content["type"] == name.removeprefix("event: ")
        found.append((content["type"], content))
    return found


async def test_a_whole_message(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        body = BODY | {"system": [{"type": "text", "text": "Be brief."}]}
        answer = (await app.post(MESSAGES, **body)).json()
        prompt = tokenizer.decode(app.scheduler.requests[0].input_ids, skip_special_tokens=False)
        counted = (await app.post("/v1/messages/count_tokens", **body)).json()
        prompt_tokens = len(app.scheduler.requests[0].input_ids)
    assert prompt == "<s>system: Be brief.</s><s>user: hi</s><s>assistant: "
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt_tokens - 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": len(tokenizer.encode("hello")) + 1,
        },
    }
    assert counted == {"input_tokens": prompt_tokens}


async def test_events_of_a_stream(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "ab") as app:
        found = await events(app)
    assert [name for name, _ in found] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert found[0][1]["message"]["content"] == [] and found[0][1]["message"]["usage"]["output_tokens"] == 0
    assert [data["delta"]["text"] for name, data in found if name == "content_block_delta"] == ["a", "b"]
    assert found[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] == 3


async def test_null_means_default(tokenizer: Tokenizer) -> None:
    names = ("system", "stop_sequences", "temperature", "top_p", "top_k", "tools", "tool_choice", "thinking", "stream")
    async with serving(tokenizer) as app:
        response = await app.post(MESSAGES, **BODY, **dict.fromkeys(names))
    assert response.status_code == 200, response.text


async def test_a_message_with_too_many_calls(tokenizer: Tokenizer) -> None:
    """What Anthropic's rules let pass and a chat's do not is the client's fault all the same."""
    calls = [{"type": "tool_use", "id": str(i), "name": "f", "input": {}} for i in range(129)]
    async with serving(tokenizer) as app:
        response = await app.post(MESSAGES, **(BODY | {"messages": [{"role": "assistant", "content": calls}]}))
    assert response.status_code == 400 and "128" in response.json()["error"]["message"]


async def test_why_it_stopped(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "one STOP two") as app:
        answer = (await app.post(MESSAGES, **BODY, stop_sequences=["STOP"])).json()
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")
        assert answer["content"] == [{"type": "text", "text": "one "}]
        answer = (await app.post(MESSAGES, **(BODY | {"max_tokens": 2}))).json()
        assert answer["stop_reason"] == "max_tokens"


async def test_tools_and_thinking() -> None:
    text = f"<think>Hm.</think>I look.{written_call('weather', city='Bonn')}"
    async with serving(tool_tokenizer(), text, reasoning_parser="qwen3") as app:
        answer = (await app.post(MESSAGES, **BODY, tools=[TOOL])).json()
        kinds = [block["type"] for block in answer["content"]]
        assert kinds == ["thinking", "text", "tool_use"] and answer["stop_reason"] == "tool_use"
        assert answer["content"][2]["input"] == {"city": "Bonn"}
        found = await events(app, tools=[TOOL])
        starts = [data["content_block"]["type"] for name, data in found if name == "content_block_start"]
        assert starts == kinds
        pieces = [data["delta"].get("partial_json", "") for name, data in found if name == "content_block_delta"]
        assert json.loads("".join(pieces)) == {"city": "Bonn"}
        assert [data["index"] for name, data in found if name == "content_block_stop"] == [0, 1, 2]
        forced = await app.post(MESSAGES, **BODY, tools=[TOOL], tool_choice={"type": "any"})
        assert forced.status_code == 200 and app.scheduler.requests[-1].sampling.grammar is not None


async def test_the_form_of_the_text(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with serving(tokenizer) as app:
        config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
        response = await app.post(MESSAGES, **BODY, output_config=config)
        assert response.status_code == 200, response.text
        grammar = app.scheduler.requests[0].sampling.grammar
    assert grammar is not None and (grammar.kind, json.loads(grammar.text)) == ("json_schema", schema)


async def test_results_of_tools_and_a_begun_answer() -> None:
    tokenizer = tool_tokenizer()
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]}
    turns = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
        {"role": "assistant", "content": "It"},
    ]
    async with serving(tokenizer) as app:
        await app.post(MESSAGES, **(BODY | {"messages": BODY["messages"] + turns}))
        prompt = tokenizer.decode(app.scheduler.requests[0].input_ids, skip_special_tokens=False)
    assert prompt == (
        "<s>user: hi</s><s>assistant: <tool_call>weather Bonn</tool_call></s><s>tool: rain</s>"
        "<s>user: And?</s><s>assistant: It"
    )


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "text, tools and thinking"),
        ({"messages": [{"role": "user", "content": [{"type": "odd"}]}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text is"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, 400, "messages[0].content[0].name is"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_k": 0}, 400, "top_k"),
        ({"stop_sequences": [""]}, 400, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, 400, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, 400, "tool_choice"),
        ({"thinking": {"type": "maybe"}}, 400, "thinking"),
        ({"output_config": {"format": {"type": "xml"}}}, 400, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, 400, "output_config.format.schema"),
        ({"output_config": {"format": _FORMAT | {"schema": {"not": {}}}}}, 400, "output_config.format.schema"),
        ({"output_config": {"effort": 5}}, 400, "output_config.effort"),
        ({"output_format": _FORMAT}, 400, "output_format"),
        ({"tools": [TOOL | {"input_schema": {"type": "objekt"}}]}, 400, "tools[0].input_schema"),
        ({"model": "other"}, 404, "other"),
    ],
)
async def test_faults(tokenizer: Tokenizer, change: dict[str, Any], status: int, named: str) -> None:
    async with serving(tokenizer) as app:
        response = await app.post(MESSAGES, **(BODY | change))
        assert app.scheduler.received == []
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert named in body["error"]["message"]


async def test_a_key_in_anthropics_header(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, api_key="secret") as app:
        refused = await app.post(MESSAGES, **BODY)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        response = await app.client.post(MESSAGES, json=BODY, headers={"x-api-key": "secret"})
        assert response.status_code == 200


async def test_a_fault_in_mid_stream(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "abcdef") as app:
        app.scheduler.paused = True
        ask = asyncio.create_task(app.post(MESSAGES, **BODY, stream=True))
        await until(lambda: app.scheduler.live, 5, "the scheduler has the request")
        app.scheduler.step()
        await asyncio.sleep(0.02)
        app.scheduler.fail_all(500, "The GPU is on fire.")
        text = (await ask).text
    name, data = text.removesuffix("\n\n").split("\n\n")[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "api_error", "message": "The GPU is on fire."},
    }
