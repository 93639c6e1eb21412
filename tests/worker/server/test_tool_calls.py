"""Tools and reasoning over /v1/chat/completions: prompts, grammars, answers and streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.chat_templates import uses_variable
from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import serving
from tests.helpers.text_models import CHAT_TEMPLATE
from tests.helpers.tool_models import TEMPLATE, TIME, WEATHER, tool_tokenizer, written_call
from worker.server.chat_messages import template_messages
from worker.server.schemas import Message
from worker.server.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
CALL = written_call("weather", city="Köln")
TEXT = f"I look.\n{CALL}\n{written_call('time')}"


@pytest.fixture(scope="module")
def tools_known() -> Tokenizer:
    return tool_tokenizer()


def deltas(events: list[Any]) -> list[dict[str, Any]]:
    return [choice["delta"] for event in events if event != "[DONE]" for choice in event["choices"]]


def joined(events: list[Any]) -> tuple[str, str, dict[int, dict[str, str]]]:
    """(content, reasoning, calls) that the deltas of a stream add up to."""
    content, reasoning, calls = "", "", dict[int, dict[str, str]]()
    for delta in deltas(events):
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            entry = calls.setdefault(call["index"], {"arguments": ""})
            entry |= {key: call[key] for key in ("id",) if key in call}
            entry |= {"name": call["function"]["name"]} if "name" in call["function"] else {}
            entry["arguments"] += call["function"]["arguments"]
    return content, reasoning, calls


async def test_calls_beside_content(tools_known: Tokenizer) -> None:
    """finish_reason is tool_calls, and the text is not lost."""
    async with serving(tools_known, TEXT) as app:
        body = {"messages": HI, "tools": [WEATHER, TIME], "max_tokens": 200}
        choice = (await app.post(CHAT, **body)).json()["choices"][0]
        events = await app.events(CHAT, **body)
        prompt = tools_known.decode(app.scheduler.requests[0].input_ids, skip_special_tokens=False)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "I look."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "time"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln"}
    assert json.loads(message["tool_calls"][1]["function"]["arguments"]) == {}
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    content, _, calls = joined(events)
    assert content == "I look."
    assert [call["name"] for call in calls.values()] == ["weather", "time"]
    assert json.loads(calls[0]["arguments"]) == {"city": "Köln"}
    assert all(call["id"].startswith("call_") for call in calls.values())
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"  # type: ignore[index]
    assert "The weather of a city" in prompt


async def test_without_parallel_calls_there_is_one(tools_known: Tokenizer) -> None:
    async with serving(tools_known, f"{TEXT} Done.") as app:
        body = {"messages": HI, "tools": [WEATHER, TIME], "max_tokens": 200, "parallel_tool_calls": False}
        choice = (await app.post(CHAT, **body)).json()["choices"][0]
        content, _, calls = joined(await app.events(CHAT, **body))
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert [call["name"] for call in calls.values()] == ["weather"]
    assert content == choice["message"]["content"] and content.endswith("Done.")


async def test_a_call_that_was_cut_off_ends_with_length(tools_known: Tokenizer) -> None:
    async with serving(tools_known, TEXT) as app:
        choice = (await app.post(CHAT, messages=HI, tools=[WEATHER], max_tokens=40)).json()["choices"][0]
    assert choice["finish_reason"] == "length"


async def test_without_tools_marks_are_text(tools_known: Tokenizer) -> None:
    async with serving(tools_known, TEXT) as app:
        for more in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
            choice = (await app.post(CHAT, messages=HI, max_tokens=200, **more)).json()["choices"][0]
            assert choice["message"] == {"role": "assistant", "content": TEXT}
            assert choice["finish_reason"] == "stop"
            prompt = tools_known.decode(app.scheduler.requests[-1].input_ids)
            assert "The weather" not in prompt


async def test_history_with_calls(tools_known: Tokenizer) -> None:
    arguments = json.dumps({"city": "Bonn"})
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    async with serving(tools_known) as app:
        response = await app.post(CHAT, messages=messages, tools=[WEATHER])
        assert response.status_code == 200, response.text
        prompt = tools_known.decode(app.scheduler.requests[0].input_ids, skip_special_tokens=False)
    assert "<tool_call>weather Bonn</tool_call></s><s>tool: rain</s>" in prompt


def test_a_template_without_tools_gets_them_as_text() -> None:
    messages = [
        Message(role="system", content="Be brief."),
        Message.model_validate({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
        Message(role="tool", content="rain"),
    ]
    system, assistant, answer = template_messages(messages, [TIME], takes_tools=False)
    assert system["content"].startswith("Be brief.\n\nYou may call functions.")
    assert '{"type": "function", "function": {"name": "time"}}' in system["content"]
    assert assistant["content"] == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert answer == {"role": "user", "content": "<tool_response>\nrain\n</tool_response>"}
    assert template_messages(messages[2:], [TIME], takes_tools=False)[0]["role"] == "system"
    assert template_messages(messages[2:], takes_tools=False) == [{"role": "tool", "content": "rain"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_forced_call_becomes_a_grammar(tools_known: Tokenizer, choice: Any) -> None:
    async with serving(tools_known, CALL) as app:
        body = {"messages": HI, "tools": [WEATHER, TIME], "tool_choice": choice, "max_tokens": 100}
        answer = (await app.post(CHAT, **body)).json()["choices"][0]
        assert (await app.post(CHAT, **body, parallel_tool_calls=False)).status_code == 200
        first, second = app.scheduler.requests
    assert first.sampling.grammar is not None and second.sampling.grammar is not None
    form = json.loads(first.sampling.grammar.text)["format"]
    assert [tag["begin"] for tag in form["tags"]] == [
        f'<tool_call>\n{{"name": "{name}", "arguments": '
        for name in (["weather", "time"] if choice == "required" else ["weather"])
    ]
    assert form["tags"][0]["content"]["json_schema"]["required"] == ["city"]
    assert form["at_least_one"] and form["stop_after_first"] == (choice != "required")
    assert json.loads(second.sampling.grammar.text)["format"]["stop_after_first"]
    assert answer["finish_reason"] == "tool_calls"
    assert json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln"}


async def test_a_model_whose_calls_nobody_knows_is_not_left_to_choose(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        message = check_error(await app.post(CHAT, messages=HI, tools=[WEATHER]), 400, "tools")
    assert "--tool-call-parser" in message


REASONED = "<think>\nHm, 5.\n</think>\n\nIt is 5."


async def test_reasoning_comes_apart(tools_known: Tokenizer) -> None:
    async with serving(tools_known, REASONED, reasoning_parser="qwen3") as app:
        body = {"messages": HI, "max_tokens": 200, "reasoning_effort": "low"}
        message = (await app.post(CHAT, **body)).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "It is 5.", "reasoning_content": "Hm, 5."}
        assert joined(await app.events(CHAT, **body))[:2] == ("It is 5.", "Hm, 5.")
        one_piece = deltas(await app.events(CHAT, **body, stream_reasoning=False))
        assert [d["reasoning_content"] for d in one_piece if "reasoning_content" in d] == ["Hm, 5."]
        message = (await app.post(CHAT, **body, separate_reasoning=False)).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": REASONED}
        count = len(tools_known.encode("Hm, 5.", add_special_tokens=False))
        details = (await app.post(CHAT, **body)).json()["usage"]["completion_tokens_details"]
        assert details == {"reasoning_tokens": count}
        *_, usage, _ = await app.events(CHAT, **body, stream_options={"include_usage": True})
        details = usage["usage"]["completion_tokens_details"]  # type: ignore[index]
        assert details["reasoning_tokens"] == pytest.approx(count, abs=1)


async def test_a_prompt_may_open_the_reasoning(tools_known: Tokenizer) -> None:
    text = f"Hm.</think>{CALL}"
    async with serving(tools_known, text, reasoning_parser="qwen3") as app:
        body = {"messages": HI, "max_tokens": 200, "tools": [WEATHER], "chat_template_kwargs": {"effort": True}}
        choice = (await app.post(CHAT, **body)).json()["choices"][0]
        assert choice["message"]["reasoning_content"] == "Hm."
        assert choice["finish_reason"] == "tool_calls"
        await app.post(CHAT, **body, tool_choice="required")
        grammar = app.scheduler.requests[-1].sampling.grammar
        assert grammar is not None and json.loads(grammar.text)["format"]["type"] == "sequence"
        plain = {"messages": HI, "max_tokens": 200}
        content = (await app.post(CHAT, **plain)).json()["choices"][0]["message"]["content"]
        assert content == text  # nothing opened it


async def test_the_reasoning_effort_reaches_the_template(tools_known: Tokenizer, tmp_path: Any) -> None:
    file = tmp_path / "effort.jinja"
    file.write_text("{{ reasoning_effort }}|{{ messages[0].content }}|{{ add_generation_prompt }}")
    tools_known = tool_tokenizer()
    tools_known.hugging_face.chat_template = file.read_text()
    async with serving(tools_known) as app:
        await app.post(CHAT, messages=HI, reasoning_effort="high", add_generation_prompt=False)
        assert tools_known.decode(app.scheduler.requests[0].input_ids) == "high|hi|False"


async def test_one_log_probability_for_each_token_whatever_the_parsers_do(tools_known: Tokenizer) -> None:
    text = f"<think>Hm.</think>So: {CALL} end"
    async with serving(tools_known, text, reasoning_parser="qwen3") as app:
        body = {"messages": HI, "tools": [WEATHER], "max_tokens": 200, "logprobs": True}
        answer = (await app.post(CHAT, **body)).json()
        count = answer["usage"]["completion_tokens"]
        assert len(answer["choices"][0]["logprobs"]["content"]) == count
        events = await app.events(CHAT, **body)
    scored = [choice["logprobs"] for event in events if event != "[DONE]" for choice in event["choices"]]  # type: ignore[index,union-attr]
    assert sum(len(each["content"]) for each in scored if each) == count


def test_what_a_template_shows_to_the_model() -> None:
    assert uses_variable(TEMPLATE, "tools")
    assert not uses_variable(CHAT_TEMPLATE, "tools")  # it only says that it has none
    assert not uses_variable("{{ 'a \\' tools' }} tools {{ \"tools\" }} {{ toolset }}", "tools")


async def test_only_assistant_messages(tokenizer: Tokenizer) -> None:
    messages = [{"role": "assistant", "content": "well"}]
    async with serving(tokenizer) as app:
        for more, prompt in (
            ({}, "<s>assistant: well</s><s>assistant: "),
            ({"continue_final_message": True}, "<s>assistant: well"),
            ({"add_generation_prompt": False}, "<s>assistant: well</s>"),
        ):
            assert (await app.post(CHAT, messages=messages, **more)).status_code == 200
            assert tokenizer.decode(app.scheduler.requests[-1].input_ids, skip_special_tokens=False) == prompt
