"""SGLang's /generate over HTTP."""

from __future__ import annotations

from typing import Any

from tests.helpers.replica_app import App, serving
from worker.ipc.messages import GenerateRequest
from worker.server.tokenizer import Tokenizer

HARD = "👩‍🔬漢 STOP"


def sent(app: App) -> list[GenerateRequest]:
    return [message for message in app.scheduler.received if isinstance(message, GenerateRequest)]


async def test_one_prompt(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        answer = (await app.post("/generate", text="hi", rid="mine")).json()
    output_ids = [*tokenizer.encode("hello"), 2]
    info = answer["meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("hello", output_ids)
    assert info["id"] == "mine"
    assert info["finish_reason"] == {"type": "stop", "matched": 2}
    assert (info["prompt_tokens"], info["completion_tokens"]) == (len(tokenizer.encode("hi")), len(output_ids))
    assert info["cached_tokens"] == 1
    assert info["e2e_latency"] > 0


async def test_the_prompts_ids_on_request(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        answers = (await app.post("/generate", text=["hi", "you"], return_prompt_token_ids=True)).json()
        assert [answer["prompt_token_ids"] for answer in answers] == [tokenizer.encode(t) for t in ("hi", "you")]
        assert "prompt_token_ids" not in (await app.post("/generate", text="hi")).json()


async def test_ids_batches_and_copies_give_lists(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, lambda request: [*request.input_ids, 2]) as app:
        ids = tokenizer.encode("two")
        assert (await app.post("/generate", input_ids=ids)).json()["text"] == "two"
        answers = (await app.post("/generate", input_ids=[ids, ids[:1]], rid="group")).json()
        assert [answer["output_ids"] for answer in answers] == [[*ids, 2], [ids[0], 2]]
        assert [answer["meta_info"]["id"] for answer in answers] == ["group_0", "group_1"]
        answers = (await app.post("/generate", text=["a"], rid=["only"])).json()
        assert [answer["meta_info"]["id"] for answer in answers] == ["only"]
        answers = (await app.post("/generate", text="a", sampling_params={"n": 2, "sampling_seed": 4})).json()
        assert len(answers) == 2
        assert [request.sampling.seed for request in sent(app)[-2:]] == [4, 5]
        each = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
        answers = (await app.post("/generate", text=["abc", "abc"], sampling_params=each)).json()
        assert [answer["text"] for answer in answers] == ["a", "ab"]
        assert answers[1]["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


async def test_streams_are_cumulative(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, HARD) as app:
        params = {"stop": ["STOP"], "max_new_tokens": 100}
        whole = (await app.post("/generate", text="hi", sampling_params=params)).json()
        *events, done = await app.events("/generate", text="hi", sampling_params=params)
        *batch, _ = await app.events("/generate", text=["a", "b"], sampling_params=params)
    texts = [event["text"] for event in events]  # type: ignore[index]
    assert done == "[DONE]"
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert not any("\ufffd" in text for text in texts)
    last: Any = events[-1]
    assert (
        (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"]) == ("👩‍🔬漢 ", whole["output_ids"])
    )
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)  # type: ignore[index]
    assert {event["index"] for event in batch} == {0, 1}  # type: ignore[index]


async def test_incremental_streams_carry_new_text_only(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, HARD, incremental_streaming_output=True, weight_version="v7") as app:
        params = {"stop": ["STOP"], "max_new_tokens": 100}
        whole = (await app.post("/generate", text="hi", sampling_params=params)).json()
        *events, done = await app.events("/generate", text="hi", sampling_params=params)
    news: list[Any] = events
    assert done == "[DONE]" and len(news) > 3
    assert "".join(event["text"] for event in news) == whole["text"]
    assert [token for event in news for token in event["output_ids"]] == whole["output_ids"]
    assert news[-1]["meta_info"]["completion_tokens"] == len(whole["output_ids"])
    assert {event["meta_info"]["weight_version"] for event in [whole, *news]} == {"v7"}


async def test_default_and_null_lengths(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        for params in (None, {}, {"max_new_tokens": None}, {"max_new_tokens": 5}):
            assert (await app.post("/generate", text="hi", sampling_params=params)).status_code == 200
        assert [request.sampling.max_new_tokens for request in sent(app)] == [128, 128, None, 5]


async def test_a_request_may_choose_its_stream_interval(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "abcdefgh", stream_interval=3) as app:
        wide, plain = {"stream_interval": 5}, {"stream_interval": None}
        *events, _ = await app.events("/generate", text="hi", sampling_params=wide)
        assert [event["text"] for event in events] == ["a", "abcdef", "abcdefgh"]  # type: ignore[index]
        *events, _ = await app.events("/generate", text="hi", sampling_params=plain)
        assert [event["text"] for event in events] == ["a", "abcd", "abcdefg", "abcdefgh"]  # type: ignore[index]
        *events, _ = await app.events("/generate", text=["hi", "ho"], sampling_params=[wide, {"stream_interval": 1}])
        by_answer = [sum(event["index"] == index for event in events) for index in (0, 1)]  # type: ignore[index]
        assert by_answer == [3, 9]


async def test_priorities_reach_the_scheduler_or_are_refused_if_they_mean_nothing(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        await app.post("/generate", text="hi", priority=-7)
        await app.post("/generate", text="hi")
        assert [request.priority for request in sent(app)] == [-7, None]
    async with serving(tokenizer, abort_on_priority_when_disabled=True) as app:
        refused = await app.post("/generate", text="hi", priority=0)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
        assert (await app.post("/generate", text="hi")).status_code == 200
    async with serving(tokenizer, abort_on_priority_when_disabled=True, schedule_policy="priority") as app:
        assert (await app.post("/generate", text="hi", priority=0)).status_code == 200
