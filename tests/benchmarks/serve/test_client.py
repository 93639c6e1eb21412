"""Reading answers: events however they are cut, what each API says in them, a server's faults."""

from __future__ import annotations

import orjson
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serve.backends import BACKENDS, Ask, Wishes, is_chat, is_native
from benchmarks.serve.client import Client, EventCutter
from benchmarks.serve.outcomes import Outcome
from common.clock import MonotonicClock

WISHES = Wishes(model="m", stream=True, ignore_eos=True)
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}


@settings(max_examples=40)
@given(st.lists(st.binary().filter(lambda data: not set(data) & {10, 13})), st.lists(st.integers(0, 200)))
def test_events_are_the_same_however_they_are_cut(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(b": note\r\n\r\n" + b"data: " + event + b"\r\n\r\n" for event in events)
    edges = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    cutter, found = EventCutter(), []
    for begin, end in zip(edges, edges[1:], strict=False):
        found += cutter.cut(stream[begin:end])
    assert found == [event.strip() for event in events]


def read(backend: str, *events: object) -> tuple[list[bool], Outcome]:
    outcome, api = Outcome(), BACKENDS[backend]
    lines = [orjson.dumps(event) for event in events]
    brought = [api.event(line, outcome) for line in lines]
    api.ended(outcome, next((line for line, new in zip(lines[::-1], brought[::-1], strict=True) if new), b""))
    return brought, outcome


def test_native_events_count_what_is_new() -> None:
    def event(count: int) -> dict[str, object]:
        text = '"completion_tokens": 99 ' * count  # a quote in a text is escaped
        meta = {"prompt_tokens": 9, "completion_tokens": count, "cached_tokens": 4, "num_retractions": 1}
        return {"text": text, "output_ids": list(range(count)), "meta_info": meta}

    brought, outcome = read("sglang", event(1), event(1), event(3))
    assert brought == [True, False, True]
    assert (outcome.output_tokens, outcome.input_tokens, outcome.cached_tokens, outcome.retractions) == (3, 9, 4, 1)
    assert (outcome.output_ids, outcome.error) == ([0, 1, 2], "")
    assert read("sglang", {"error": {"message": "full"}})[1].error == "full"


def test_events_of_chats_bring_tokens_only_with_content() -> None:
    def chunk(**delta: object) -> dict[str, object]:
        return {"choices": [{"delta": delta, "finish_reason": None}]}

    events = [chunk(role="assistant", content=""), chunk(content="a"), chunk(reasoning_content="b"), chunk()]
    brought, outcome = read("vllm-chat", *events, {"choices": [], "usage": USAGE})
    assert brought == [False, True, True, False, False]
    assert (outcome.text, outcome.output_tokens, outcome.input_tokens, outcome.cached_tokens) == ("a", 2, 5, 3)


def test_completions_without_a_tokenizer_bring_tokens_without_text() -> None:
    def chunk(text: str, reason: str | None) -> dict[str, object]:
        return {"choices": [{"text": text, "finish_reason": reason}]}

    brought, outcome = read("vllm", chunk("", None), chunk("a", "length"), chunk("", "stop"))
    assert brought == [True, True, False]
    assert outcome.error.startswith("The answer has no usage")


def test_bodies_have_the_fields_of_their_api() -> None:
    ask = Ask("hi", 5, {"top_k": 3})
    wishes = Wishes(model="m", stream=True, ignore_eos=True, extra={"sampling_params": {"top_p": 0.5}, "rid": "a"})
    native = BACKENDS["canopy"].body(ask, wishes)
    assert native["sampling_params"] == {"max_new_tokens": 5, "ignore_eos": True, "temperature": 0.0, "top_p": 0.5}
    assert (native["text"], native["rid"], native["top_k"]) == ("hi", "a", 3)
    chat = BACKENDS["canopy-chat"].body(Ask([{"role": "user", "content": "hi"}], 5), WISHES)
    assert (chat["max_completion_tokens"], chat["stream_options"]) == (5, {"include_usage": True})
    free = BACKENDS["vllm"].body(Ask("hi", None), WISHES)
    assert not {"max_tokens", "ignore_eos"} & set(free)
    assert is_chat("openai-chat") and not is_chat("vllm") and is_native("sglang") and not is_native("vllm")


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, b"full", "HTTP 503: full"),
        (200, b"data: {}\n\ndata: [DONE]\n\n", "no usage"),
        (200, b"data: {\n\n", "is not one of /v1/completions"),
        (200, b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}\n\n', "without [DONE]"),
        (200, b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n', "not 2"),
        (200, b'data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n', "lost"),
    ],
)
async def test_a_faulty_answer_is_a_failure_that_says_why(status: int, body: bytes, error: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server, ClientSession() as session:
        client = Client(session, str(server.make_url("")).rstrip("/"), BACKENDS["vllm"], WISHES, MonotonicClock())
        outcome = await client.send(Ask("hi", 2))
    assert not outcome.success and error in outcome.error


async def test_nobody_there_is_a_failure() -> None:
    async with ClientSession() as session:
        client = Client(session, "http://127.0.0.1:9", BACKENDS["vllm"], WISHES, MonotonicClock())
        outcome = await client.send(Ask("hi", 2))
    assert "Cannot connect" in outcome.error and not outcome.success
