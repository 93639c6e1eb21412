"""The offline engine on a tiny random model: shapes, order, limits, and nothing left behind."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from worker import Engine
from worker.server.errors import RequestFault
from worker.server.tokenizer import Tokenizer

GREEDY = {"max_new_tokens": 24, "temperature": 0}
PROMPTS = ["hello world", "the answer is", "stop and", "👨‍👩‍👧 漢字", "hello hello"]


@pytest.fixture(scope="module")
def engine(chat_model: Path) -> Iterator[Engine]:
    with Engine(model_path=str(chat_model), max_total_tokens=4000, cpu_threads=1, max_running_requests=3) as engine:
        yield engine


@pytest.fixture(scope="module")
def tokenizer(chat_model: Path) -> Tokenizer:
    return Tokenizer.load(str(chat_model))


def one(answer: dict[str, Any] | list[dict[str, Any]]) -> dict[str, Any]:
    assert isinstance(answer, dict)
    return answer


def many(answer: dict[str, Any] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert isinstance(answer, list)
    return answer


def test_one_prompt_gives_one_answer(engine: Engine, tokenizer: Tokenizer) -> None:
    answer = one(engine.generate("hello world", sampling_params=GREEDY))
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert len(answer["output_ids"]) == 24
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
    assert answer["meta_info"]["prompt_tokens"] == len(tokenizer.encode("hello world"))
    whole = tokenizer.decode(answer["output_ids"])
    assert whole.startswith(answer["text"]) and set(whole[len(answer["text"]) :]) <= {"\ufffd"}


def test_a_batch_keeps_its_order_and_equals_single_answers(engine: Engine, tokenizer: Tokenizer) -> None:
    """Five prompts on three places: some wait for others."""
    singles = [one(engine.generate(prompt, sampling_params=GREEDY))["output_ids"] for prompt in PROMPTS]
    batch = many(engine.generate(PROMPTS, sampling_params=GREEDY))
    by_ids = many(engine.generate(input_ids=[tokenizer.encode(prompt) for prompt in PROMPTS], sampling_params=GREEDY))
    assert [answer["output_ids"] for answer in batch] == singles
    assert [answer["output_ids"] for answer in by_ids] == singles
    assert [answer["text"] for answer in by_ids] == [answer["text"] for answer in batch]
    assert len(many(engine.generate(["hello"], sampling_params=GREEDY))) == 1


def test_parameters_for_each_prompt_and_copies(engine: Engine) -> None:
    each: list[dict[str, Any]] = [{"max_new_tokens": n, "temperature": 0} for n in (3, 5)]
    answers = many(engine.generate(["a", "b"], sampling_params=each))
    assert [len(answer["output_ids"]) for answer in answers] == [3, 5]
    seeded = {"max_new_tokens": 12, "sampling_seed": 5, "n": 2}
    first = many(engine.generate("a", sampling_params=seeded))
    assert first[0]["output_ids"] != first[1]["output_ids"]
    again = many(engine.generate("a", sampling_params=seeded))
    assert [answer["output_ids"] for answer in again] == [answer["output_ids"] for answer in first]


def test_ids_prompts_and_salts_are_the_callers(engine: Engine, tokenizer: Tokenizer) -> None:
    prompt = "a prompt that nobody else here has, long enough to be cached " * 3
    fields: dict[str, Any] = {"sampling_params": {"max_new_tokens": 1}, "rid": "mine"}
    answer = one(engine.generate(prompt, **fields, cache_salt="one", return_prompt_token_ids=True))
    assert answer["meta_info"]["id"] == "mine" and answer["prompt_token_ids"] == tokenizer.encode(prompt)
    assert one(engine.generate(prompt, **fields, cache_salt="two"))["meta_info"]["cached_tokens"] == 0
    again = many(engine.generate([prompt, "b"], **fields, extra_key="one"))
    assert [each["meta_info"]["id"] for each in again] == ["mine_0", "mine_1"]
    assert again[0]["meta_info"]["cached_tokens"] > 0


def test_copies_of_a_prompt_compute_it_once(engine: Engine) -> None:
    """In chunks of 128, with places for three at a time."""
    prompt = [5 + number * number % 250 for number in range(500)]
    answers = many(engine.generate(input_ids=prompt, sampling_params=GREEDY | {"n": 8}))
    computed = [answer["meta_info"]["prompt_tokens"] - answer["meta_info"]["cached_tokens"] for answer in answers]
    assert sorted(computed)[-1] == 500 and sum(computed) <= 500 + 7 * 16
    alone = one(engine.generate(input_ids=prompt, sampling_params=GREEDY))
    assert all(answer["output_ids"] == alone["output_ids"] for answer in answers)


def test_stop_strings_give_the_same_text_as_a_search(engine: Engine) -> None:
    free = one(engine.generate("hello world", sampling_params=GREEDY | {"max_new_tokens": 200}))
    text = free["text"]
    stop = text[len(text) // 2 :][:3]
    params = GREEDY | {"max_new_tokens": 200, "stop": [stop]}
    stopped, other = many(engine.generate(["hello world", "the answer"], sampling_params=[params, GREEDY]))
    assert stopped["text"] == text[: text.index(stop)]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert stopped["output_ids"] == free["output_ids"][: len(stopped["output_ids"])]
    assert len(other["output_ids"]) == 24


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        ({}, "text"),
        ({"prompts": "a", "input_ids": [5]}, "text"),
        ({"prompts": ["a", ""]}, "text[1]"),
        ({"input_ids": [100_000]}, "input_ids"),
        ({"input_ids": [5] * 5000}, "input_ids"),
        ({"prompts": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"prompts": "a", "sampling_params": {"max_tokens": 4}}, "sampling_params.max_tokens"),
        ({"prompts": "a", "stream": True}, "stream"),
        ({"prompts": "a", "return_logprob": 5}, "return_logprob"),
    ],
)
def test_faults_name_their_field(engine: Engine, ask: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestFault) as fault:
        engine.generate(**ask)
    assert fault.value.param == param
    assert len(one(engine.generate("a", sampling_params=GREEDY))["output_ids"]) > 0


def test_an_interrupted_call_leaves_nothing_running(engine: Engine) -> None:
    endless = {"max_new_tokens": 3000, "ignore_eos": True, "stop": ["never so"]}
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests may have left theirs
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            engine.generate(PROMPTS, sampling_params=endless)
    finally:
        signal.signal(signal.SIGINT, before)
    engine.flush_cache()  # would be refused while something runs
    assert len(many(engine.generate(PROMPTS, sampling_params=GREEDY))) == len(PROMPTS)


def test_streams_end_in_the_whole_answer(engine: Engine) -> None:
    whole = one(engine.generate("hello world", sampling_params=GREEDY))
    events = list(engine.stream("hello world", sampling_params=GREEDY))
    assert [len(event["output_ids"]) for event in events] == list(range(1, 25))
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in zip(events, events[1:], strict=False))
    assert (events[-1]["text"], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * 23
    batch = list(engine.stream(PROMPTS, sampling_params=GREEDY | {"n": 2}))
    last = {event["index"]: event for event in batch}
    answers = many(engine.generate(PROMPTS, sampling_params=GREEDY | {"n": 2}))
    assert [last[index]["output_ids"] for index in range(10)] == [answer["output_ids"] for answer in answers]


def test_leaving_a_stream_ends_it(engine: Engine) -> None:
    for _ in engine.stream("hello", sampling_params={"max_new_tokens": 3000, "ignore_eos": True}):
        break
    deadline_s = time.monotonic() + 30
    while True:
        try:
            return engine.flush_cache()
        except RequestFault:
            assert time.monotonic() < deadline_s


async def test_async_calls_run_side_by_side(engine: Engine) -> None:
    wanted = many(engine.generate(PROMPTS, sampling_params=GREEDY))
    answers = await asyncio.gather(*(engine.async_generate(prompt, sampling_params=GREEDY) for prompt in PROMPTS))
    assert [one(answer)["output_ids"] for answer in answers] == [answer["output_ids"] for answer in wanted]
    batch = many(await engine.async_generate(PROMPTS, sampling_params=GREEDY))
    assert [answer["output_ids"] for answer in batch] == [answer["output_ids"] for answer in wanted]
    events = [event async for event in engine.async_stream(PROMPTS[0], sampling_params=GREEDY)]
    assert events[-1]["output_ids"] == wanted[0]["output_ids"] and len(events) == 24
    with pytest.raises(RequestFault, match="top_p"):
        await engine.async_generate("a", sampling_params={"top_p": 0})


async def test_cancelled_async_calls_end(engine: Engine) -> None:
    endless = {"max_new_tokens": 3000, "ignore_eos": True}
    task = asyncio.create_task(engine.async_generate(PROMPTS, sampling_params=endless))
    stream = engine.async_stream("hello", sampling_params=endless)
    await anext(stream)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stream.aclose()  # type: ignore[attr-defined]
    assert len(many(await engine.async_generate(PROMPTS, sampling_params=GREEDY))) == len(PROMPTS)
    engine.flush_cache()


def test_threads_share_the_engine(engine: Engine) -> None:
    wanted = [one(engine.generate(prompt, sampling_params=GREEDY))["output_ids"] for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = threads.map(lambda prompt: engine.generate(prompt, sampling_params=GREEDY), PROMPTS)
        assert [one(answer)["output_ids"] for answer in answers] == wanted


def test_an_engine_that_is_shut_down_says_so(chat_model: Path) -> None:
    engine = Engine(model_path=str(chat_model), max_total_tokens=500, cpu_threads=1)
    stream = engine.stream("hello", sampling_params={"max_new_tokens": 400, "ignore_eos": True})
    next(stream)
    engine.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        list(stream)
    for call in (lambda: engine.generate("hello"), engine.flush_cache):
        with pytest.raises(RuntimeError, match="shut down"):
            call()
    engine.shutdown()


def test_bad_settings_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--page-size must be at least 1 \(got 0\)\.$"):
        Engine(model_path=str(tmp_path), page_size=0)
    with pytest.raises(UserError, match="does not exist"):
        Engine(model_path=str(tmp_path / "nowhere"))
