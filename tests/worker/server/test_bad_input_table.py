"""One table of everything a client can get wrong: where, what, and the error it must be told.

A row: path, fields changed in a good body, status, param. The error's type follows from the status (see check_error).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import App, serving
from worker.server.tokenizer import Tokenizer

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
HI = [{"role": "user", "content": "hi"}]
TAG = "sampling_params.structural_tag"
NAN, INF = float("nan"), float("inf")
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _structures(structures: Any, triggers: Any = ("<f>",)) -> dict[str, Any]:
    return {"response_format": {"type": "structural_tag", "structures": structures, "triggers": triggers}}


def _tagged(form: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "structural_tag", "format": form}}


def _with_call(*calls: Any) -> dict[str, Any]:
    return {"messages": [*HI, {"role": "assistant", "tool_calls": list(calls)}]}


def _tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def _forced(**more: Any) -> dict[str, Any]:
    return {"tools": [_tool("f", **more)], "tool_choice": "required"}


def _nested(depth: int) -> dict[str, Any]:
    return {"items": _nested(depth - 1)} if depth else {}


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
    (CHAT, _with_call({"id": "1"}), 400, "messages[1].tool_calls[0].function"),
    (
        CHAT,
        _with_call({"function": {"name": "f", "arguments": "{"}}),
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        CHAT,
        _with_call({"function": {"name": "f", "arguments": "[]"}}),
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    (CHAT, _with_call({"function": {"name": ""}}), 400, "messages[1].tool_calls[0].function.name"),
    (CHAT, _with_call(*[{"function": {"name": "f"}}] * 129), 400, "messages[1].tool_calls"),
    (CHAT, {"messages": [*HI, {"role": "assistant", "tool_calls": "f"}]}, 400, "messages[1].tool_calls"),
    (CHAT, {"messages": [{"role": "tool", "content": "a", "tool_call_id": 5}]}, 400, "messages[0].tool_call_id"),
    (CHAT, {"messages": [{"role": "assistant", "reasoning_content": 5}]}, 400, "messages[0].reasoning_content"),
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
    (CHAT, {"logprobs": 5}, 400, "logprobs"),
    (CHAT, {"top_logprobs": 5}, 400, "top_logprobs"),  # without logprobs
    (CHAT, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": "5"}, 400, "top_logprobs"),
    (CHAT, {"stream_options": {"continuous_usage_stats": 5}}, 400, "stream_options.continuous_usage_stats"),
    (CHAT, {"logit_bias": 5}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"x": 1.0}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"301": 1.0}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"-1": 1.0}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"5": 100.5}}, 400, "logit_bias[5]"),
    (CHAT, {"logit_bias": {"5": NAN}}, 400, "logit_bias[5]"),
    (CHAT, {"logit_bias": {"5": "much"}}, 400, "logit_bias[5]"),
    (CHAT, {"logit_bias": {str(i): 1.0 for i in range(1025)}}, 400, "logit_bias"),
    (CHAT, {"stop_regex": 5}, 400, "stop_regex"),
    (CHAT, {"stop_regex": ["(a"]}, 400, "stop_regex"),
    (CHAT, {"stop_regex": "(?=a)b"}, 400, "stop_regex"),
    (CHAT, {"stop_regex": "((a{999}){999}){999}"}, 400, "stop_regex"),
    (CHAT, {"stop_regex": "a*"}, 400, "stop_regex"),  # ends every answer
    (CHAT, {"stop_regex": [""]}, 400, "stop_regex[0]"),
    (CHAT, {"stop_regex": ["x" * 257]}, 400, "stop_regex[0]"),
    (CHAT, {"stop_regex": ["x"] * 5}, 400, "stop_regex"),
    (CHAT, {"response_format": "json"}, 400, "response_format"),
    (CHAT, {"response_format": {}}, 400, "response_format.type"),
    (CHAT, {"response_format": {"type": "xml"}}, 400, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    (CHAT, _schema_format(None), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format("{}"), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format({"type": "objekt"}), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format({"not": {}}), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format({"type": "array", "uniqueItems": True}), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format({"type": "string", "maxLength": 10**9}), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format({"properties": {"a": {"multipleOf": 3}}}), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format(False), 400, "response_format.json_schema.schema"),
    (CHAT, _schema_format(_nested(70)), 400, "response_format.json_schema.schema"),
    (CHAT, {"regex": 5}, 400, "regex"),
    (CHAT, {"regex": "a" * 4097}, 400, "regex"),
    (CHAT, {"ebnf": ["root"]}, 400, "ebnf"),
    (CHAT, {"ebnf": "root ::= " + '"a"? ' * 4000}, 400, "ebnf"),
    (CHAT, _tagged({"type": "grammar", "grammar": "root ::= " + '"a"? ' * 4000}), 400, "response_format"),
    (CHAT, _tagged({"type": "regex", "pattern": "a?" * 2049}), 400, "response_format"),
    (CHAT, {"json_schema": "{"}, 400, "json_schema"),
    (CHAT, {"json_schema": "5"}, 400, "json_schema"),
    (CHAT, {"json_schema": 5}, 400, "json_schema"),
    (CHAT, {"regex": "a", "ebnf": 'root ::= "a"'}, 400, "ebnf"),
    (CHAT, {"regex": "a", "response_format": {"type": "json_object"}}, 400, "response_format"),
    (CHAT, {"response_format": {"type": "structural_tag", "structures": 5}}, 400, "response_format.structures"),
    (CHAT, _structures([{}]), 400, "response_format.structures[0].begin"),
    (CHAT, _structures([{"begin": "<f>", "end": 5}]), 400, "response_format.structures[0].end"),
    (CHAT, _structures([{"begin": "", "end": ""}]), 400, "response_format.structures[0].begin"),
    (CHAT, _structures([{"begin": "<f>", "end": "", "schema": 5}]), 400, "response_format.structures[0].schema"),
    (CHAT, _structures([{"begin": "<f>", "end": "", "schema": {"not": {}}}]), 400, "response_format"),
    (CHAT, _structures([]), 400, "response_format.structures"),
    (CHAT, _structures([{"begin": "<f>", "end": ""}], []), 400, "response_format.triggers"),
    (CHAT, _structures([{"begin": "<f>", "end": ""}], None), 400, "response_format.triggers"),
    (TEXT, {"n": 3, "best_of": 2}, 400, "best_of"),
    (TEXT, {"best_of": 129}, 400, "best_of"),
    (TEXT, {"prompt": ["a"] * 100, "best_of": 11}, 400, "best_of"),
    (TEXT, {"best_of": 0}, 400, "best_of"),
    (TEXT, {"best_of": "3"}, 400, "best_of"),
    (TEXT, {"max_tokens": 0}, 400, "max_tokens"),  # without echo
    (NATIVE, {"sampling_params": {"logit_bias": {"301": 1}}}, 400, "sampling_params.logit_bias"),
    (NATIVE, {"sampling_params": {"stop_regex": "["}}, 400, "sampling_params.stop_regex"),
    (NATIVE, {"sampling_params": {"json_schema": "{"}}, 400, "sampling_params.json_schema"),
    (NATIVE, {"sampling_params": {"json_schema": '{"if": {}}'}}, 400, "sampling_params.json_schema"),
    (NATIVE, {"sampling_params": {"structural_tag": "x"}}, 400, "sampling_params.structural_tag"),
    (NATIVE, {"sampling_params": {"structural_tag": "[]"}}, 400, "sampling_params.structural_tag"),
    (
        NATIVE,
        {"sampling_params": {"structural_tag": {"structures": 5}}},
        400,
        "sampling_params.structural_tag.structures",
    ),
    (NATIVE, {"sampling_params": {"regex": "a", "json_schema": "{}"}}, 400, "sampling_params.json_schema"),
    # what this server does not do
    (CHAT, {"tools": [_tool("f")]}, 400, "tools"),  # nobody knows how this model writes calls
    (CHAT, {"tools": "f"}, 400, "tools"),
    (CHAT, {"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    (CHAT, {"tools": [{"type": "function"}]}, 400, "tools[0].function"),
    (CHAT, {"tools": [_tool("a b")]}, 400, "tools[0].function.name"),
    (CHAT, {"tools": [_tool("f", parameters=5)]}, 400, "tools[0].function.parameters"),
    (CHAT, {"tools": [_tool("f", parameters={"type": "objekt"})]}, 400, "tools[0].function.parameters"),
    (CHAT, {"tools": [_tool("f"), _tool("f")]}, 400, "tools[1].function.name"),
    (CHAT, {"tools": [_tool(f"f{i}") for i in range(1025)]}, 400, "tools"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": "sometimes"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": _tool("f")}, 400, "tool_choice"),
    (CHAT, {"tools": [_tool("f")], "tool_choice": _tool("g")}, 400, "tool_choice"),
    (CHAT, {"tools": [_tool("f")], "tool_choice": {"type": "function"}}, 400, "tool_choice.function"),
    (CHAT, {"tools": [_tool("f")], "tool_choice": "required", "regex": "a"}, 400, "regex"),
    (CHAT, _forced(parameters={"if": {}}), 400, "tools[0].function.parameters"),
    (CHAT, {"parallel_tool_calls": "no"}, 400, "parallel_tool_calls"),
    (CHAT, {"separate_reasoning": "no"}, 400, "separate_reasoning"),
    (CHAT, {"stream_reasoning": 1}, 400, "stream_reasoning"),
    (CHAT, {"reasoning_effort": "x" * 33}, 400, "reasoning_effort"),
    (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, 400, "add_generation_prompt"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
    (CHAT, {"chat_template_kwargs": {"tools": []}}, 400, "chat_template_kwargs"),
    (CHAT, {"lora_path": "x"}, 400, "lora_path"),
    (CHAT, {"session_id": "x"}, 400, "session_id"),
    (CHAT, {"return_token_ids": True}, 400, "return_token_ids"),
    (CHAT, {"return_meta_info": True}, 400, "return_meta_info"),
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
    (TEXT, {"max_tokens": -1}, 400, "max_tokens"),
    (TEXT, {"echo": "yes"}, 400, "echo"),
    (TEXT, {"logprobs": 21}, 400, "logprobs"),
    (TEXT, {"logprobs": -1}, 400, "logprobs"),
    (TEXT, {"logprobs": True}, 400, "logprobs"),
    (TEXT, {"logprobs": 1.5}, 400, "logprobs"),
    (TEXT, {"suffix": "x"}, 400, "suffix"),
    (TEXT, {"best_of": 2, "stream": True}, 400, "best_of"),
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
    (NATIVE, {"sampling_params": {"max_new_tokens": -1}}, 400, "sampling_params.max_new_tokens"),
    (NATIVE, {"sampling_params": {"min_new_tokens": 200}}, 400, "sampling_params.min_new_tokens"),
    (NATIVE, {"sampling_params": {"stop_token_ids": [301]}}, 400, "sampling_params.stop_token_ids"),
    (NATIVE, {"sampling_params": [{}, {}]}, 400, "sampling_params"),
    (NATIVE, {"text": ["a", "b"], "sampling_params": [{}, {"top_p": 0}]}, 400, "sampling_params[1].top_p"),
    (NATIVE, {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, 400, "sampling_params"),
    (NATIVE, {"text": ["a", "b"], "rid": ["x", "x"]}, 400, "rid"),
    (NATIVE, {"text": ["a", "b"], "rid": ["x"]}, 400, "rid"),
    (NATIVE, {"return_logprob": "yes"}, 400, "return_logprob"),
    (NATIVE, {"text": ["a", "b"], "return_logprob": [True]}, 400, "return_logprob"),
    (NATIVE, {"return_logprob": True, "logprob_start_len": -2}, 400, "logprob_start_len"),
    (NATIVE, {"return_logprob": True, "logprob_start_len": 50}, 400, "logprob_start_len"),
    (NATIVE, {"return_logprob": True, "logprob_start_len": 2**40}, 400, "logprob_start_len"),
    (NATIVE, {"text": ["a", "b"], "return_logprob": True, "logprob_start_len": [0]}, 400, "logprob_start_len"),
    (NATIVE, {"return_logprob": True, "top_logprobs_num": -1}, 400, "top_logprobs_num"),
    (NATIVE, {"return_logprob": True, "top_logprobs_num": 302}, 400, "top_logprobs_num"),
    (NATIVE, {"return_logprob": True, "token_ids_logprob": [301]}, 400, "token_ids_logprob"),
    (NATIVE, {"return_logprob": True, "token_ids_logprob": [-1]}, 400, "token_ids_logprob"),
    (NATIVE, {"return_logprob": True, "token_ids_logprob": [1] * 1025}, 400, "token_ids_logprob"),
    (NATIVE, {"return_logprob": True, "token_ids_logprob": "all"}, 400, "token_ids_logprob"),
    (NATIVE, {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1]]}, 400, "token_ids_logprob"),
    (NATIVE, {"image_data": "x"}, 400, "image_data"),
    (NATIVE, {"return_prompt_token_ids": "yes"}, 400, "return_prompt_token_ids"),
    (NATIVE, {"return_entropy": True}, 400, "return_entropy"),
    (NATIVE, {"session_id": "x"}, 400, "session_id"),
    (NATIVE, {"max_thinking_tokens": 5}, 400, "max_thinking_tokens"),
    (NATIVE, {"background": True}, 400, "background"),
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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_fault_names_its_field(app: App, stream: bool) -> None:
    """One app for the whole table: a server per row would take most of a minute."""
    wrong = []
    for path, change, status, param in FAULTS:
        body = GOOD.get(path, {}) | change
        if stream and "stream" not in change and path in GOOD:
            body["stream"] = True
        response = await app.client.post(path, content=json.dumps(body))  # writes NaN too, which strict writers refuse
        try:
            check_error(response, status, param)
        except AssertionError:
            wrong.append(f"{path} with {str(change)[:200]}: {response.status_code} {response.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert app.scheduler.received == []  # nothing faulty reached the scheduler
    assert app.service.num_live == 0
