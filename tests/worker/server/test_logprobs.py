"""Log-probabilities over HTTP: OpenAI's and SGLang's shapes, streamed and whole, over a fake scheduler's numbers."""

from __future__ import annotations

from typing import Any

from tests.helpers.replica_app import App, serving
from worker.ipc.messages import GenerateRequest, TokenScore
from worker.server.logprobs import CompletionLogprobs, NativeLogprobs, ScoredToken, chat_logprobs
from worker.server.tokenizer import NoTokenizer, Tokenizer

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
HI = [{"role": "user", "content": "hi"}]
HARD = "é 漢👩‍🔬 end"
EOS = 2


def sent(app: App) -> GenerateRequest:
    return app.scheduler.requests[-1]


def joined(events: list[Any], index: int = 0) -> dict[str, list[Any]]:
    """The completion logprobs of one choice's events, put together."""
    whole: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index and choice["logprobs"] is not None:
                for name, values in choice["logprobs"].items():
                    whole[name] += values
    return whole


async def test_chat_has_one_entry_for_each_token(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode(HARD), EOS]
    async with serving(tokenizer, HARD) as app:
        answer = (await app.post(CHAT, messages=HI, logprobs=True, top_logprobs=3, n=2)).json()
        *events, _ = await app.events(CHAT, messages=HI, logprobs=True, top_logprobs=3)
        bare = (await app.post(CHAT, messages=HI, logprobs=True)).json()
        nothing = (await app.post(CHAT, messages=HI)).json()
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        assert [entry["logprob"] for entry in content] == [-id_ / 8 for id_ in ids]
        assert b"".join(bytes(entry["bytes"]) for entry in content[:-1]).decode() == HARD
        assert (content[-1]["token"], bytes(content[-1]["bytes"])) == ("</s>", b"</s>")
        assert [len(entry["top_logprobs"]) for entry in content] == [3] * len(ids)
        assert content[0]["top_logprobs"][1] == {"token": "<s>", "bytes": list(b"<s>"), "logprob": -1.5}
    streamed = [choice for event in events for choice in event["choices"]]  # type: ignore[index]
    parts = [choice["logprobs"]["content"] for choice in streamed if choice["logprobs"] is not None]
    assert [entry for part in parts for entry in part] == answer["choices"][0]["logprobs"]["content"]
    for choice in streamed:  # tokens come with the text they are part of
        if choice["delta"].get("content"):
            text = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
            assert text.decode() == choice["delta"]["content"]
    assert [entry["top_logprobs"] for entry in bare["choices"][0]["logprobs"]["content"]] == [[]] * len(ids)
    assert nothing["choices"][0]["logprobs"] is None


async def test_scores_behind_a_stop_string_are_cut(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "hello STOP more") as app:
        answer = (await app.post(CHAT, messages=HI, logprobs=True, stop="STOP")).json()
    assert answer["choices"][0]["message"]["content"] == "hello "
    assert len(answer["choices"][0]["logprobs"]["content"]) == answer["usage"]["completion_tokens"]


async def test_completions_with_echo(tokenizer: Tokenizer) -> None:
    prompt = "hé 漢"
    prompt_ids, ids = tokenizer.encode(prompt), [*tokenizer.encode(HARD), EOS]
    everything = prompt_ids + ids
    async with serving(tokenizer, HARD) as app:
        fields = {"prompt": prompt, "logprobs": 2, "echo": True, "max_tokens": 100}
        answer = (await app.post(TEXT, **fields)).json()
        *events, _ = await app.events(TEXT, **fields)
        by_ids = (await app.post(TEXT, **fields | {"prompt": prompt_ids})).json()
        assert sent(app).sampling.logprobs is not None and sent(app).sampling.logprobs.prompt_from == 1
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == prompt + HARD == by_ids["choices"][0]["text"]
    assert logprobs["token_logprobs"] == [None, *(-id_ / 8 for id_ in everything[1:])]
    assert logprobs["top_logprobs"][0] is None
    best = logprobs["top_logprobs"][1]
    assert best["<unk>"] == -0.5 and best["<s>"] == -1.5 and len(best) == 3  # the token itself too
    assert len(logprobs["tokens"]) == len(everything)
    part = tokenizer.encode("漢")[0]  # a third of a character
    assert logprobs["tokens"][prompt_ids.index(part)].startswith("bytes:\\x")
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or token == "</s>" or choice["text"][offset:].startswith(token)
    assert joined(events) == logprobs
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]  # type: ignore[index]
    assert by_ids["choices"][0]["logprobs"] == logprobs


async def test_a_prompt_is_scored_without_an_answer(tokenizer: Tokenizer) -> None:
    """What evaluation harnesses do: nothing is generated."""
    async with serving(tokenizer, "ok") as app:
        response = await app.post(TEXT, prompt="hi", echo=True, max_tokens=0, stream=False)
        assert response.status_code == 200, response.text
        assert (response.json()["choices"][0]["text"], sent(app).sampling.max_new_tokens) == ("hi", 0)


async def test_no_best_ones_are_told_unless_asked_for(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "ok") as app:
        answer = (await app.post(TEXT, prompt=["a", "b"], logprobs=0, n=2)).json()
    assert [choice["logprobs"]["top_logprobs"] for choice in answer["choices"]] == [[None] * 3] * 4
    assert [choice["logprobs"]["text_offset"] for choice in answer["choices"]] == [[0, 1, 2]] * 4


async def test_native_lists(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("ok"), EOS]
    prompt = tokenizer.encode("hi you")
    async with serving(tokenizer, "ok") as app:
        fields = {"text": "hi you", "return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [8, 16]}
        answer = (await app.post(NATIVE, **fields, logprob_start_len=1, return_text_in_logprobs=True)).json()
        *events, _ = await app.events(NATIVE, **fields, logprob_start_len=1, return_text_in_logprobs=True)
        plain = (await app.post(NATIVE, text="hi", return_logprob=True)).json()["meta_info"]
    info = answer["meta_info"]
    assert info["output_token_logprobs"] == [
        [-id_ / 8, id_, text] for id_, text in zip(ids, ["o", "k", "</s>"], strict=True)
    ]
    assert info["output_top_logprobs"][0] == [[-0.5, 0, "<unk>"], [-1.5, 1, "<s>"]]
    assert [[value for value, _, _ in line] for line in info["output_token_ids_logprobs"]] == [[-1.0, -2.0]] * 3
    assert [[value, id_] for value, id_, _ in info["input_token_logprobs"]] == [
        [None, prompt[1]],
        *([-id_ / 8, id_] for id_ in prompt[2:]),
    ]
    assert info["input_top_logprobs"][0] is None and len(info["input_token_ids_logprobs"]) == len(prompt) - 1
    last: Any = events[-1]
    first: Any = events[0]
    names = [name for name in info if "logprobs" in name]
    assert len(names) == 6 and all(last["meta_info"][name] == info[name] for name in names)
    assert first["meta_info"]["input_token_logprobs"] == info["input_token_logprobs"]
    assert len(first["meta_info"]["output_token_logprobs"]) == 1
    assert plain["input_token_logprobs"] == [] and plain["output_token_logprobs"][0][2] is None
    assert "output_top_logprobs" not in plain and "output_token_ids_logprobs" not in plain


async def test_incremental_native_streams_tell_each_score_once(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, HARD, incremental_streaming_output=True) as app:
        fields = {"text": "hi you", "return_logprob": True, "logprob_start_len": 0}
        whole = (await app.post(NATIVE, **fields)).json()["meta_info"]
        *events, _ = await app.events(NATIVE, **fields)
    for name in ("input_token_logprobs", "output_token_logprobs"):
        assert [entry for event in events for entry in event["meta_info"][name]] == whole[name]  # type: ignore[index]


def test_minus_infinity_is_a_number(tokenizer: Tokenizer) -> None:
    never = [ScoredToken(7, TokenScore(float("-inf"), [(8, float("-inf"))], []))]
    chat = chat_logprobs(never, tokenizer.token_bytes)["content"][0]
    assert (chat["logprob"], chat["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert CompletionLogprobs(tokenizer.token_bytes, tokenizer.token_bytes).of(never)["token_logprobs"] == [-9999.0]
    assert NativeLogprobs(None, True, ()).fields("output", never)["output_token_logprobs"] == [(-9999.0, 7, None)]


async def test_token_ids_stand_for_tokens_without_a_tokenizer() -> None:
    async with serving(NoTokenizer(), [7, EOS], skip_tokenizer_init=True) as app:
        answer = (await app.post(TEXT, prompt=[5], logprobs=1)).json()["choices"][0]
        assert answer["logprobs"]["tokens"] == ["token_id:7", "token_id:2"]


async def test_a_simulated_device_has_none(tokenizer: Tokenizer) -> None:
    from tests.helpers.fake_scheduler import ready_message
    from worker.server.sampling import SamplingDefaults
    from worker.server.service import ModelFiles

    async with serving(tokenizer, opened=False) as app:
        app.service.open(ready_message(has_logits=False), ModelFiles(tokenizer, SamplingDefaults()))
        for path, body, param in (
            (CHAT, {"messages": HI, "logprobs": True}, "logprobs"),
            (TEXT, {"prompt": "a", "logprobs": 1}, "logprobs"),
            (NATIVE, {"text": "a", "return_logprob": True}, "return_logprob"),
        ):
            response = await app.post(path, **body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
