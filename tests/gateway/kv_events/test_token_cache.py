"""Remembered beginnings change nothing but the work."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.kv_events.token_cache import TokenCache
from tests.helpers.text_models import SPECIALS, byte_fallback_backend, byte_level_backend

BACKEND = byte_level_backend()


class Encoder:
    """Counts the characters that are encoded."""

    def __init__(self) -> None:
        self.chars = 0

    def __call__(self, text: str, add_special_tokens: bool) -> list[int]:
        self.chars += len(text)
        return list(BACKEND.encode(text, add_special_tokens=add_special_tokens).ids)


def ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


pieces = st.lists(st.sampled_from([*SPECIALS, "the answer", " ", "é", "hello\n", "<s", "世", "[é added]"]), max_size=12)


@given(texts=st.lists(pieces.map("".join), min_size=1, max_size=6), max_bytes=st.sampled_from([0, 600, 10_000]))
def test_ids_are_those_of_the_whole_text(texts: list[str], max_bytes: int) -> None:
    cache = TokenCache(Encoder(), SPECIALS, max_bytes)
    assert cache.cuts_texts
    for text in [*texts, *texts]:
        for specials in (False, True):
            packed, _ = cache.encode(text, add_special_tokens=specials)
            assert ids(packed) == BACKEND.encode(text, add_special_tokens=specials).ids
        assert cache.bytes_used <= max_bytes


def test_of_a_conversation_only_what_is_new_is_encoded() -> None:
    encoder = Encoder()
    cache = TokenCache(encoder, SPECIALS, 10**6)
    turns = [f"<s>user: {'hello world ' * 50}{turn}</s>" for turn in range(5)]
    for turn in range(1, 6):
        encoder.chars = 0
        text = "".join(turns[:turn]) + "<s>assistant: "
        assert not cache.encode(text, add_special_tokens=False)[1]
        assert encoder.chars <= len(turns[0]) + len("<s>assistant: ")
    encoder.chars = 0
    assert cache.encode(text, add_special_tokens=False)[1] and encoder.chars == 0


def test_a_tokenizer_that_eats_spaces_around_special_tokens_is_never_cut_there() -> None:
    def encode(text: str, add_special_tokens: bool) -> list[int]:
        return BACKEND.encode(text.replace("</s> ", "</s>"), add_special_tokens=add_special_tokens).ids

    cache = TokenCache(encode, ["</s>"], 10**6)
    assert not cache.cuts_texts
    for text in ("a</s> b", "a</s>"):
        assert ids(cache.encode(text, add_special_tokens=False)[0]) == encode(text, False)


def test_without_special_tokens_whole_texts_are_remembered() -> None:
    backend = byte_fallback_backend()
    cache = TokenCache(lambda text, specials: backend.encode(text, add_special_tokens=specials).ids, [], 10**6)
    assert [cache.encode("the", add_special_tokens=False)[1] for _ in range(2)] == [False, True]
