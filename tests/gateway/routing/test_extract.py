"""What routing reads from request bodies."""

from __future__ import annotations

from array import array
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.routing.extract import MAX_TEXT_BYTES, BodyFault, extract, extract_model
from gateway.routing.keys import routing_headers

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5)
json_values = leaves | st.lists(leaves | st.lists(leaves, max_size=2), max_size=3)
FIELDS = ("model", "messages", "prompt", "text", "input_ids", "tools", "stream", "cache_salt", "lora_path")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}), max_size=4
)


def route(**fields: Any) -> Any:
    return extract(orjson.dumps(fields))


@relaxed
@given(messages, messages)
def test_longer_chats_extend_the_text(first: list[dict[str, str]], more: list[dict[str, str]]) -> None:
    assert route(messages=first + more).text.startswith(route(messages=first).text)


@relaxed
@given(messages, messages)
def test_different_chats_differ(a: list[dict[str, str]], b: list[dict[str, str]]) -> None:
    control = {chr(0x1E), chr(0x1F)}
    if not any(control & set(message["content"]) for message in a + b):
        assert (a == b) == (route(messages=a).text == route(messages=b).text)


@relaxed
@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_json_object_is_taken(fields: dict[str, Any]) -> None:
    found = extract(orjson.dumps(fields))
    assert len(found.text) <= MAX_TEXT_BYTES + 100
    assert found.prompt_bytes >= 0 and found.prompt_tokens >= 0
    assert found.model is None or isinstance(found.model, str)


@relaxed
@given(st.binary(max_size=30))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        extract(body)
    except BodyFault as fault:
        assert str(fault).endswith(".")


def test_prompts_of_every_kind() -> None:
    assert route(prompt="abc").text == b"abc"
    assert route(text="abc").text == b"abc"
    ids = route(input_ids=[1, 2, 70000])
    assert (ids.text, ids.prompt_tokens, ids.prompt_bytes) == (array("I", [1, 2, 70000]).tobytes(), 3, 12)
    batch = route(prompt=["abc", "de"])
    assert (batch.text, batch.prompt_bytes, batch.single) == (b"abc", 5, False)
    nested = route(input_ids=[[1, 2], [3]])
    assert (nested.prompt_tokens, nested.single) == (3, False)
    assert route(prompt=["only"]).single
    assert route(prompt=[-1, 2]).text == b""
    assert route(prompt=[[[1]]]).text == b""


def test_content_parts() -> None:
    def chat(*parts: Any) -> bytes:
        return bytes(route(messages=[{"role": "user", "content": list(parts)}]).text)

    text = {"type": "text", "text": "look"}
    image_a = {"type": "image_url", "image_url": {"url": "data:a"}}
    image_b = {"type": "image_url", "image_url": {"url": "data:b"}}
    assert chat(text) == route(messages=[{"role": "user", "content": "look"}]).text
    assert chat(text, image_a) != chat(text, image_b)
    assert chat(text, image_a).startswith(chat(text).rstrip(b"\x1e"))
    assert chat({"type": [], "text": "look"}) != chat({"type": {}, "text": "look"}) != chat(text)


def test_what_keeps_caches_apart_keeps_texts_apart() -> None:
    plain = route(prompt="abc").text
    found = {plain}
    for extra in ({"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}, {"lora_path": "x"}):
        found.add(route(prompt="abc", **extra).text)
    chat = [{"role": "user", "content": "abc"}]
    found |= {route(messages=chat).text, route(messages=chat, tools=[{"type": "function"}]).text}
    assert len(found) == 6  # cache_salt "a" and extra_key "a" are the same namespace


def test_long_prompts_are_bounded_but_counted() -> None:
    found = route(prompt="x" * (MAX_TEXT_BYTES + 5))
    assert (len(found.text), found.prompt_bytes) == (MAX_TEXT_BYTES, MAX_TEXT_BYTES + 5)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_only_true_streams(value: Any) -> None:
    assert not route(stream=value).stream
    assert route(stream=True).stream


def test_model_only() -> None:
    assert extract_model(b'{"model": "m", "prompt": "abc"}').text == b""
    with pytest.raises(BodyFault):
        extract_model(b"[]")


def test_nan_is_left_for_the_worker_to_refuse() -> None:
    assert extract(b'{"model": "m", "temperature": NaN, "stream": true}').stream


def test_images_are_told_apart_by_their_digest_and_marked() -> None:
    def chat(data: str) -> Any:
        parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:" + data}}]
        return route(messages=[{"role": "user", "content": parts}])

    big, other = chat("A" * 10**6), chat("A" * (10**6 - 1) + "B")
    assert big.media and not route(messages=[{"role": "user", "content": "look"}]).media
    assert big.text != other.text
    assert big.prompt_bytes < 100


def test_keys_and_targets_come_from_headers() -> None:
    def read(*headers: tuple[bytes, bytes]) -> tuple[bytes, str]:
        found = extract(b"{}", *routing_headers(headers))
        only = extract_model(b"{}", *routing_headers(headers))
        assert (found.key, found.target) == (only.key, only.target)
        return found.key, found.target

    assert read() == (b"", "")
    assert read((b"x-session-id", b"s"), (b"x-smg-routing-key", b"k")) == (b"k", "")
    assert read((b"x-smg-routing-key", b"k"), (b"x-canopy-routing-key", b"c")) == (b"c", "")
    assert read((b"x-smg-target-worker", b"1")) == (b"", "1")
    assert read((b"x-canopy-target-worker", b"w:80"), (b"x-session-id", b"")) == (b"", "w:80")
    assert len(read((b"x-session-id", b"s" * 5000))[0]) == 512


DEEP = '{"messages": [{"role": "user", "content": "x"}], "tools": ' + "[" * 300 + "]" * 300 + "}"
LARGE = '{"messages": [{"role": "user", "content": "x"}], "top_p": NaN, "tools": [' + "9" * 60 + "]}"


@pytest.mark.parametrize(
    "body", [DEEP, LARGE, DEEP.replace("tools", "cache_salt"), LARGE.replace("tools", "cache_salt")]
)
def test_whatever_can_be_read_can_be_rendered(body: str) -> None:
    """Depths and numbers that orjson reads, or json does, and orjson does not write."""
    route = extract(body.encode())
    assert route.text and extract(body.encode()).text == route.text
    assert extract(body.replace('"x"', '"y"').encode()).text != route.text


def test_half_a_surrogate_pair_is_refused_as_what_it_is() -> None:
    with pytest.raises(BodyFault, match="surrogate"):
        extract(b'{"messages": [{"role": "user", "content": "\\ud800"}]}')
    assert extract(b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}').text


def test_other_apis_give_the_text_that_chats_give() -> None:
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]}
    turns = [{"role": "user", "content": "hi"}]
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    text = extract(orjson.dumps(chat)).text
    for same in (
        {"system": "Be brief.", "messages": turns},
        {"system": [{"type": "text", "text": "Be brief."}], "messages": turns},
        {"instructions": "Be brief.", "input": "hi"},
        {"instructions": "Be brief.", "input": parts},
    ):
        assert extract(orjson.dumps(same)).text == text


def test_calls_and_their_outputs_are_told_apart() -> None:
    def text(output: str) -> bytes:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        items = ["hi", 5, call, {"type": "function_call_output", "call_id": "c", "output": output}]
        return extract(orjson.dumps({"input": items})).text

    assert text("rain") == text("rain") != text("sun")
    assert extract(b'{"input": 5}').text == b""
