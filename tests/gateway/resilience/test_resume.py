"""Continued streams: the seam must not show, wherever the first worker died; pure, without sockets."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.resilience.continuation import CHAT, COMPLETIONS, continuation_of
from gateway.resilience.resumable_stream import DONE, ResumableStream
from tests.helpers.fake_worker import event
from tests.helpers.story_worker import (
    PROMPT_TOKENS,
    StoryTeller,
    request_fields,
    text_of,
    tokens_of,
    usage_of,
)

stories = st.lists(
    st.sampled_from(["we", " went", " home", "\n", "\n\n", "  ", " été", " 你好", "."]), max_size=12
).map("".join)


def stream_for(fields: dict[str, Any]) -> ResumableStream | None:
    endpoint = CHAT if "messages" in fields else COMPLETIONS
    continuation = continuation_of(endpoint, orjson.dumps(fields))
    return None if continuation is None else ResumableStream(continuation)


def feed(stream: ResumableStream, data: bytes, sizes: list[int]) -> bytes:
    """Feed it in pieces; what goes out."""
    out, position, turn = b"", 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        piece = data[position : position + size]
        passed = stream.feed(piece)
        out += piece if passed is None else passed
        position, turn = position + size, turn + 1
    return out


def told(fields: dict[str, Any], story: str, cuts: list[float], sizes: list[int]) -> bytes | None:
    """The client's bytes when each worker but the last dies after that share of its stream. None: it broke."""
    stream = stream_for(fields)
    assert stream is not None
    body, out = fields, b""
    for number, cut in enumerate([*cuts, 1.1]):
        sent = b"".join(StoryTeller(story, name=f"w{number}").answer(body))
        dead = cut <= 1
        out += feed(stream, sent[: int(len(sent) * cut)] if dead else sent, sizes)
        if not dead:
            return out + stream.rest()
        ending = stream.ending()
        if ending is not None:
            return out + ending
        if not stream.resumable:
            return None
        following = stream.resume(len(tokens_of(stream.text)))
        if following is None:
            ending = stream.ending(at_limit=True)
            return None if ending is None else out + ending
        body = json.loads(following)
    raise AssertionError


@settings(max_examples=300)
@given(
    chat=st.booleans(),
    story=stories,
    cuts=st.lists(st.floats(0, 1), max_size=3),
    sizes=st.lists(st.integers(1, 200), max_size=4),
    limit=st.none() | st.integers(1, 12),
    usage=st.booleans(),
)
def test_the_seam_does_not_show(
    chat: bool, story: str, cuts: list[float], sizes: list[int], limit: int | None, usage: bool
) -> None:
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    if limit is not None:
        more["max_tokens"] = limit
    fields = request_fields(chat, **more)
    body = told(fields, story, cuts, sizes)
    if body is None:
        # Only where the text was whole, or at its limit, and the usage was missing.
        assert usage and cuts
        return
    whole = b"".join(StoryTeller(story, name="w0").answer(fields))
    assert text_of(body) == text_of(whole)
    assert body.count(DONE) == 1
    if not cuts:
        assert body == whole
    if usage:
        assert usage_of(body) == usage_of(whole)
        assert usage_of(body)["prompt_tokens"] == PROMPT_TOKENS


@pytest.mark.parametrize("chat", [True, False])
def test_every_byte_is_a_place_to_die(chat: bool) -> None:
    story = "Once upon\n\na time été  你好."
    fields = request_fields(chat, max_tokens=5)
    whole = b"".join(StoryTeller(story).answer(fields))
    for cut in range(len(whole) + 1):
        body = told(fields, story, [cut / len(whole)], [])
        assert body is not None and text_of(body) == text_of(whole), cut


def test_what_the_client_began_is_continued() -> None:
    fields = request_fields(True)
    fields["messages"].append({"role": "assistant", "content": "Once upon"})
    fields |= {"continue_final_message": True, "add_generation_prompt": False}
    # add_generation_prompt: false is what such clients send beside it
    stream = stream_for(fields)
    assert stream is not None
    feed(stream, event({"id": "x", "choices": [{"index": 0, "delta": {"content": " a time"}}]}), [])
    following = json.loads(stream.resume(2) or b"")
    assert following["messages"][-1] == {"role": "assistant", "content": "Once upon a time"}
    assert len(following["messages"]) == 2


def test_before_the_first_word_the_request_is_simply_repeated() -> None:
    fields = request_fields(True, temperature=0.5, max_completion_tokens=9)
    stream = stream_for(fields)
    assert stream is not None
    feed(stream, event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}), [])
    assert json.loads(stream.resume(0) or b"") == fields


@pytest.mark.parametrize(
    "more",
    [
        {"stream": False},
        {"n": 2},
        {"seed": 1},
        {"seed": 1, "temperature": 0.7},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -1},
        {"repetition_penalty": 1.1},
        {"min_tokens": 5},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"regex": "a+"},
        {"stream_options": {"continuous_usage_stats": True}},
        {"a_field_of_tomorrow": 1},
        {"messages": []},
        {"messages": "x"},
        {"continue_final_message": True},
        {"continue_final_message": True, "messages": [{"role": "assistant", "content": [{"type": "text"}]}]},
    ],
)
def test_what_cannot_be_replayed_is_left_alone(more: dict[str, Any]) -> None:
    assert stream_for(request_fields(True, **more)) is None


@pytest.mark.parametrize(
    "more", [{"prompt": [1, 2]}, {"prompt": ["a", "b"]}, {"prompt": ""}, {"echo": True}, {"suffix": "x"}]
)
def test_nor_are_such_completions(more: dict[str, Any]) -> None:
    assert stream_for(request_fields(False, **more)) is None


@pytest.mark.parametrize(
    "more",
    [
        {"n": 1, "logprobs": False, "tools": None, "seed": None, "frequency_penalty": 0.0, "tool_choice": "auto"},
        {"seed": 1, "temperature": 0},
        {"response_format": {"type": "text"}, "stop": ["x"], "top_p": 0.5, "user": "u", "ignore_eos": True},
        {"a_field_of_tomorrow": None, "another": False},
    ],
)
def test_neutral_values_do_no_harm(more: dict[str, Any]) -> None:
    assert stream_for(request_fields(True, **more)) is not None


def test_other_endpoints_and_bodies_are_left_alone() -> None:
    assert continuation_of("/generate", orjson.dumps({"stream": True, "text": "x"})) is None
    for body in (b"", b"[]", b"{", b'{"stream": true}'):
        assert continuation_of(CHAT, body) is continuation_of(COMPLETIONS, body) is None


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"tool_calls": [{}]}},
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"content": "a"}, "logprobs": {"content": []}},
        {"delta": {"content": 3}},
        {"delta": "x"},
    ],
)
def test_an_answer_that_is_more_than_text_is_not_continued(choice: dict[str, Any]) -> None:
    stream = stream_for(request_fields(True))
    assert stream is not None
    sent = event({"id": "x", "choices": [{"index": 0, **choice}]})
    assert feed(stream, sent, []) == sent
    assert not stream.resumable


@pytest.mark.parametrize("data", [b"data: {oops\n\n", b"data: 3\n\n", b"event: x\ndata: {}\n\n", event({"error": {}})])
def test_nor_is_one_that_is_not_understood(data: bytes) -> None:
    stream = stream_for(request_fields(True))
    assert stream is not None
    assert feed(stream, data, []) == data
    assert not stream.resumable and stream.ending() is None


def test_comments_and_other_line_ends_pass() -> None:
    stream = stream_for(request_fields(False))
    assert stream is not None
    sent = b": ping\n\n" + event({"id": "x", "choices": [{"index": 0, "text": "a"}]}).replace(b"\n\n", b"\r\n\r\n")
    assert feed(stream, sent, [5]) == sent
    assert stream.resumable and stream.text == "a"
    stream.resume(1)
    assert feed(stream, b": ping\n\n", []) == b": ping\n\n"
