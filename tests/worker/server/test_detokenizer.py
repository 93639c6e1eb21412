"""Text from ids equals the tokenizer's own decoding, however the ids are cut, and never shows half a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.helpers.text_models import byte_fallback_backend, byte_level_backend
from worker.server.detokenizer import Detokenizer, TokenTable

BYTE_LEVEL = byte_level_backend()
BYTE_FALLBACK = byte_fallback_backend()
LEVEL_SHOWN = TokenTable(BYTE_LEVEL, skip_special=True)
LEVEL_ALL = TokenTable(BYTE_LEVEL, skip_special=False)
FALLBACK_SHOWN = TokenTable(BYTE_FALLBACK, skip_special=True)
VOCAB = BYTE_LEVEL.get_vocab_size()

HARD_TEXTS = [
    "👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb",
    "漢字とかな、한국어",
    "مرحبا بالعالم",
    "नमस्ते",
    "a\u0301 combining, \U0001f600\U0001f601",
    "tabs\tand\nnewlines\r\n  spaces",
]


def pieces_of(table: TokenTable, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(table)
    return [detokenizer.push([token_id]) for token_id in ids]


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.parametrize(
    ("backend", "table"), [(BYTE_LEVEL, LEVEL_SHOWN), (BYTE_FALLBACK, FALLBACK_SHOWN)], ids=["level", "fallback"]
)
def test_characters_split_over_tokens_come_whole(text: str, backend: Tokenizer, table: TokenTable) -> None:
    ids = backend.encode(text).ids
    assert len(ids) > len(text.replace(" ", "")) // 2
    pieces = pieces_of(table, ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    assert "".join(pieces_of(LEVEL_ALL, ids)) == BYTE_LEVEL.decode(ids, skip_special_tokens=False)


@given(st.lists(st.integers(0, VOCAB - 1)), st.booleans())
def test_any_ids_decode_as_the_tokenizer_does(ids: list[int], skip: bool) -> None:
    text = "".join(pieces_of(LEVEL_SHOWN if skip else LEVEL_ALL, ids))
    whole = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert whole.startswith(text)
    assert set(whole[len(text) :]) <= {"\ufffd"}  # only a character that never ends is missing
    assert len(whole) - len(text) <= 1


@given(st.lists(st.integers(0, VOCAB - 1)), st.data())
def test_cuts_do_not_matter(ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = Detokenizer(LEVEL_SHOWN)
    assert detokenizer.push(ids[:cut]) + detokenizer.push(ids[cut:]) == "".join(pieces_of(LEVEL_SHOWN, ids))


def test_a_character_that_never_ends_is_never_seen() -> None:
    ids = BYTE_LEVEL.encode("ok 😀").ids[:-1]
    assert "".join(pieces_of(LEVEL_SHOWN, ids)) == "ok "


def test_invalid_bytes_are_marked_and_do_not_block() -> None:
    lone = BYTE_LEVEL.encode("é").ids[-1]  # a continuation byte
    assert pieces_of(LEVEL_SHOWN, [lone, lone, *BYTE_LEVEL.encode("x").ids]) == ["\ufffd", "\ufffd", "x"]


def test_special_tokens_are_shown_only_on_request() -> None:
    ids = [1, *BYTE_LEVEL.encode("hi").ids, 2]
    assert "".join(pieces_of(LEVEL_SHOWN, ids)) == "hi"
    assert "".join(pieces_of(LEVEL_ALL, ids)) == "<s>hi</s>"


def test_added_tokens_that_are_not_special_are_text() -> None:
    ids = BYTE_LEVEL.encode("a[é added]b").ids
    assert "".join(pieces_of(LEVEL_SHOWN, ids)) == "a[é added]b"


def test_ids_beyond_the_tokenizer_add_nothing() -> None:
    assert pieces_of(LEVEL_SHOWN, [VOCAB + 5]) == [""]


def test_a_space_at_the_start_of_an_answer_is_kept() -> None:
    """It continues the prompt; the tokenizer's own decoding would strip it."""
    ids = BYTE_FALLBACK.encode(" the").ids
    assert "".join(pieces_of(FALLBACK_SHOWN, ids)) == " the"
