"""OpenAI's /v1/responses without its memory: the official client, events, tools, what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import serving
from tests.helpers.tool_models import tool_tokenizer, written_call
from worker.server.tokenizer import Tokenizer

RESPONSES = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


async def test_the_official_client(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        client = openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0)
        answer = await client.responses.create(model="tiny", input="hi", instructions="Be brief.", max_output_tokens=20)
        assert (answer.output_text, answer.status, answer.usage and answer.usage.output_tokens) == (
            "hello",
            "completed",
            len(tokenizer.encode("hello")) + 1,
        )
        prompt = tokenizer.decode(app.scheduler.requests[0].input_ids, skip_special_tokens=False)
        assert prompt == "<s>system: Be brief.</s><s>user: hi</s><s>assistant: "
        async with client.responses.stream(model="tiny", input="hi") as stream:
            kinds = [event.type async for event in stream]
            assert (await stream.get_final_response()).output_text == "hello"
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        cut = await client.responses.create(model="tiny", input="hi", max_output_tokens=1)
        assert cut.status == "incomplete" and cut.incomplete_details is not None
        await client.close()


async def test_items_reasoning_and_calls() -> None:
    tokenizer = tool_tokenizer()
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bonn"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
        {"role": "user", "content": "And?"},
    ]
    text = f"<think>Hm.</think>I look.{written_call('weather', city='Bonn')}"
    async with serving(tokenizer, text, reasoning_parser="qwen3") as app:
        answer = (await app.post(RESPONSES, input=items)).json()
        prompt = tokenizer.decode(app.scheduler.requests[0].input_ids, skip_special_tokens=False)
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        answer = (await app.post(RESPONSES, input="hi", tools=[TOOL])).json()
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
        response = await app.post(RESPONSES, input="hi", tools=[TOOL], stream=True)
    assert prompt == (
        "<s>user: hi</s><s>assistant: <tool_call>weather Bonn</tool_call></s><s>tool: rain</s>"
        "<s>assistant: Rain.</s><s>user: And?</s><s>assistant: "
    )
    call = answer["output"][2]
    assert json.loads(call["arguments"]) == {"city": "Bonn"} and call["call_id"].startswith("call_")
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = [json.loads(e.split("data: ")[1]) for e in response.text.removesuffix("\n\n").split("\n\n")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = events[-1]["response"]["output"]
    assert whole == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    pieces = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call["arguments"]


async def test_the_form_of_the_text(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
        response = await app.post(RESPONSES, input="hi", text={"format": form})
        assert response.status_code == 200, response.text
        grammar = app.scheduler.requests[0].sampling.grammar
    assert grammar is not None and grammar.kind == "json_schema"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "arguments": "{}"}]}, "input[0].name"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"input": "x" * 600}, "input"),
        ({"max_output_tokens": 512}, "max_output_tokens"),  # with the prompt over the context
        ({"input": [{"type": "function_call", "name": "f", "arguments": "["}]}, "input"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [TOOL | {"parameters": {"type": "objekt"}}]}, "tools[0].parameters"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
    ],
)
async def test_faults(tokenizer: Tokenizer, change: dict[str, Any], param: str) -> None:
    async with serving(tokenizer) as app:
        response = await app.post(RESPONSES, **({"input": "hi"} | change))
        assert app.scheduler.received == []
    check_error(response, 400, param)


async def test_nothing_is_stored(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        check_error(await app.client.get(f"{RESPONSES}/resp_1"), 404, "response_id")
        check_error(await app.post("/v1/embeddings", input="hi"), 400, "model")
