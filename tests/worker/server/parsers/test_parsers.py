"""Parsers of calls and reasoning: what each family writes, and that it does not matter how the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.server.parsers.base import CallArguments, CallStart, Content, OutputParser, Part, Reasoning, merged
from worker.server.parsers.calls import Hermes, Llama3
from worker.server.parsers.choose import Families, families
from worker.server.parsers.deepseek import DeepSeekV3
from worker.server.parsers.harmony import Harmony
from worker.server.parsers.mistral import Mistral
from worker.server.parsers.thinking import Chain, Thinking

ARGS = '{"city": "Bonn }\\" <tool_call>", "days": [1, {"x": null}]}'
D = DeepSeekV3


def call(name: str = "f", arguments: str = ARGS, index: int = 0) -> list[Part]:
    return [CallStart(index, name), CallArguments(index, arguments)]


def whole(parser: OutputParser, *pieces: str) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    return merged(parts + parser.finish())


def hermes_call(name: str = "f", arguments: str = ARGS) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def deepseek_call(name: str) -> str:
    return f"{D.CALL}function{D.SEPARATOR}{name}\n```json\n{ARGS}\n```{D.CALL_END}"


ANALYSIS = "<|channel|>analysis<|message|>I think.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
OSS_CALL = f"<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGS}<|call|>"


CASES: list[tuple[str, Callable[[], OutputParser], str, list[Part]]] = [
    ("hermes", Hermes, hermes_call(), call()),
    ("hermes, text before", Hermes, f"Let me see.\n{hermes_call()}", [Content("Let me see."), *call()]),
    ("hermes, text behind", Hermes, f"{hermes_call()}\n\nSo.", [*call(), Content("So.")]),
    ("hermes, two", Hermes, f"{hermes_call()}\n{hermes_call('g', '{}')}", [*call(), *call("g", "{}", 1)]),
    (
        "hermes, arguments first",
        Hermes,
        '<tool_call>{"arguments": {"a":1}, "name": "f"}</tool_call>',
        call("f", '{"a":1}'),
    ),
    (
        "hermes, arguments as text",
        Hermes,
        '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>',
        call("f", '{"a":1}'),
    ),
    ("hermes, no arguments", Hermes, '<tool_call>{"name":"f"}</tool_call>', call("f", "{}")),
    ("hermes, cut off", Hermes, '<tool_call>{"name":"f","arguments":{"a":', call("f", '{"a":')),
    ("hermes, no call", Hermes, "a <tool_call> b", [Content("a <tool_call> b")]),
    ("hermes, no name", Hermes, '<tool_call>{"x": 1}</tool_call>', [Content('<tool_call>{"x": 1}</tool_call>')]),
    ("hermes, half a mark", Hermes, "a <tool_c", [Content("a <tool_c")]),
    ("hermes, space at the end", Hermes, "a \n", [Content("a \n")]),
    ("llama3", Llama3, f'{{"name": "f", "parameters": {ARGS}}}', call()),
    (
        "llama3, tag",
        Llama3,
        f'Hm. <|python_tag|>{{"type": "function", "name": "f", "parameters": {ARGS}}}',
        [Content("Hm."), *call()],
    ),
    (
        "llama3, two",
        Llama3,
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        [*call("f", "{}"), *call("g", "{}", 1)],
    ),
    ("llama3, other JSON", Llama3, '{"answer": 5}', [Content('{"answer": 5}')]),
    ("llama3, text", Llama3, "It is {5}.", [Content("It is {5}.")]),
    (
        "mistral, list",
        Mistral,
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGS}}}, {{"name": "g", "arguments": {{}}}}]',
        [*call(), *call("g", "{}", 1)],
    ),
    (
        "mistral, names",
        Mistral,
        f"So: [TOOL_CALLS]f[ARGS]{ARGS}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{{}}",
        [Content("So:"), *call(), *call("g", "{}", 1)],
    ),
    ("mistral, text", Mistral, "see [TOOL_", [Content("see [TOOL_")]),
    (
        "deepseek",
        D,
        f"Ok.{D.LIST}{deepseek_call('f')}\n{deepseek_call('g')}{D.LIST_END}",
        [Content("Ok."), *call(), *call("g", ARGS, 1)],
    ),
    ("deepseek v3.1", D, f"{D.LIST}{D.CALL}f{D.SEPARATOR}{ARGS}{D.CALL_END}{D.LIST_END}", call()),
    ("gpt-oss", lambda: Harmony(calls=True, reasoning=True), ANALYSIS + OSS_CALL, [Reasoning("I think."), *call()]),
    (
        "gpt-oss, final",
        lambda: Harmony(calls=True, reasoning=True),
        ANALYSIS + FINAL,
        [Reasoning("I think."), Content("Done.")],
    ),
    (
        "gpt-oss, recipient first",
        lambda: Harmony(calls=True, reasoning=True),
        f"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{ARGS}",
        call(),
    ),
    ("gpt-oss, unseparated", lambda: Harmony(calls=True, reasoning=False), ANALYSIS, [Content("I think.")]),
    (
        "thinking",
        lambda: Thinking(inside=False),
        "<think>\nHm.\n</think>\n\nYes. ",
        [Reasoning("Hm."), Content("Yes. ")],
    ),
    ("thinking, begun", lambda: Thinking(inside=True), "Hm.\n</think>Yes.", [Reasoning("Hm."), Content("Yes.")]),
    (
        "thinking, begun twice",
        lambda: Thinking(inside=True),
        "<think>Hm.</think>Yes.",
        [Reasoning("Hm."), Content("Yes.")],
    ),
    ("thinking, none", lambda: Thinking(inside=False), " Yes <think>", [Content(" Yes <think>")]),
    ("thinking, endless", lambda: Thinking(inside=True), "Hm </thi", [Reasoning("Hm </thi")]),
    (
        "thinking, then a call",
        lambda: Chain(Thinking(inside=True), Hermes()),
        f"Hm.</think>\n{hermes_call()}",
        [Reasoning("Hm."), *call()],
    ),
    (
        "thinking of calls",
        lambda: Chain(Thinking(inside=True), Hermes()),
        f"{hermes_call()}</think>No.",
        [Reasoning(hermes_call()), Content("No.")],
    ),
]


@pytest.mark.parametrize(("make", "text", "parts"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_models_write(make: Callable[[], OutputParser], text: str, parts: list[Part]) -> None:
    assert whole(make(), text) == parts
    assert whole(make(), *text) == parts  # one character at a time
    for part in parts:
        if isinstance(part, CallArguments) and part.text.endswith("}"):
            json.loads(part.text)


MARKS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", "<", " ", "\n"),
    *("<|start|>", "assistant", "<|channel|>", "analysis", "commentary to=functions.f", "<|message|>", "<|end|>"),
    *(D.LIST, D.CALL, D.SEPARATOR, D.CALL_END, D.LIST_END, "function", "f", "hello", "[", "]", ",", ";", "漢"),
    *(hermes_call(), '{"name": "f", "parameters": {"a": 1}}', '{"name"', ": ", '"f"', "{", "}", '"', "\\", "5"),
]
PARSERS = list({case[0]: case[1] for case in CASES}.values())


@given(
    make=st.sampled_from(PARSERS),
    text=st.lists(st.sampled_from(MARKS), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=20),
)
def test_how_the_text_is_cut_changes_nothing(make: Callable[[], OutputParser], text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert whole(make(), *pieces) == whole(make(), text)


@given(st.sampled_from(PARSERS), st.lists(st.sampled_from(MARKS), max_size=14).map("".join))
def test_calls_are_counted_and_begin_before_their_arguments(make: Callable[[], OutputParser], text: str) -> None:
    begun = -1
    for part in whole(make(), text):
        if isinstance(part, CallStart):
            begun += 1
            assert part.index == begun
        elif isinstance(part, CallArguments):
            assert part.index == begun


@pytest.mark.parametrize(
    ("template", "architectures", "found"),
    [
        ("... <tool_call> ... <think>", ["Qwen3ForCausalLM"], Families("hermes", "qwen3")),
        ("[AVAILABLE_TOOLS]", [], Families("mistral")),
        ("<|python_tag|>", ["LlamaForCausalLM"], Families("llama3")),
        ("<｜tool▁calls▁begin｜> <think>", [], Families("deepseekv3", "qwen3")),
        ("<|channel|>analysis", ["GptOssForCausalLM"], Families("gpt-oss", "gpt-oss")),
        ("<|im_start|>", ["LlamaForCausalLM"], Families()),
        (None, ["MistralForCausalLM"], Families("mistral")),
    ],
)
def test_auto(template: str | None, architectures: list[str], found: Families) -> None:
    assert families("auto", "auto", template, architectures) == found
    assert families("none", "none", template, architectures) == Families()
    assert families("qwen", "deepseek-r1", template, architectures) == Families("hermes", "deepseek-r1")


def test_a_request_that_wants_neither_gets_the_text_as_it_is() -> None:
    both = Families("hermes", "qwen3")
    text = f"<think>Hm.</think>{hermes_call()}"
    assert whole(both.parser(calls=False, reasoning=False, inside=False), text) == [Content(text)]
    assert whole(both.parser(calls=True, reasoning=True, inside=False), text) == [Reasoning("Hm."), *call()]
