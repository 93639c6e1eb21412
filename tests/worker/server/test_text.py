"""The way from tokens to text: stop strings split over tokens, stop tokens, minimum lengths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.text_models import EOS_ID, byte_level_backend
from worker.ipc.messages import FinishReason
from worker.sampling_params import SamplingParams
from worker.server.detokenizer import TokenTable
from worker.server.text import Piece, TextPipeline

BACKEND = byte_level_backend()
SHOWN = TokenTable(BACKEND, skip_special=True)
ALL = TokenTable(BACKEND, skip_special=False)
LENGTH = FinishReason(kind="length")
EOS = FinishReason(kind="stop", matched=EOS_ID)


def ids_of(text: str) -> list[int]:
    return list(BACKEND.encode(text).ids)


def feed(pipeline: TextPipeline, ids: list[int], finish: FinishReason | None, cut: int = 1) -> list[Piece]:
    """Push `cut` tokens at a time until the text ends."""
    pieces = []
    for start in range(0, len(ids), cut):
        last = start + cut >= len(ids)
        pieces.append(pipeline.push(ids[start : start + cut], finish if last else None))
        if pieces[-1].finish is not None:
            break
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_a_stop_string_split_over_tokens_ends_the_answer_and_is_not_seen() -> None:
    ids = ids_of("say 🛑 now")
    pieces = feed(TextPipeline(SHOWN, SamplingParams(stop=("🛑",))), ids, LENGTH)
    assert text_of(pieces) == "say "
    assert pieces[-1].finish == FinishReason(kind="stop", matched="🛑")
    assert len(pieces) == len(ids_of("say 🛑"))  # not one token later


def test_tokens_behind_the_stop_string_do_not_count() -> None:
    ids = ids_of("abcd")
    piece = TextPipeline(SHOWN, SamplingParams(stop=("b",))).push(ids, None)
    assert (piece.text, piece.num_tokens) == ("a", len(ids_of("ab")))


def test_a_held_back_beginning_is_released_at_the_end() -> None:
    pieces = feed(TextPipeline(SHOWN, SamplingParams(stop=("END",))), ids_of("x EN"), LENGTH)
    assert text_of(pieces) == "x EN"
    assert pieces[-1].finish == LENGTH


def test_a_stop_token_is_counted_but_not_shown() -> None:
    ids = [*ids_of("hi"), EOS_ID]
    pieces = feed(TextPipeline(ALL, SamplingParams(skip_special_tokens=False)), ids, EOS)
    assert (text_of(pieces), sum(piece.num_tokens for piece in pieces)) == ("hi", len(ids))


def test_no_stop_trim_shows_stop_token_and_stop_string() -> None:
    sampling = SamplingParams(skip_special_tokens=False, no_stop_trim=True)
    assert text_of(feed(TextPipeline(ALL, sampling), [*ids_of("hi"), EOS_ID], EOS)) == "hi</s>"
    sampling = SamplingParams(stop=("i",), no_stop_trim=True)
    assert text_of(feed(TextPipeline(SHOWN, sampling), ids_of("hi there"), LENGTH)) == "hi"


def test_a_stop_string_counts_only_from_the_minimum_length_on() -> None:
    ids = ids_of("xaxaxa")
    assert len(ids) == 6
    pieces = feed(TextPipeline(SHOWN, SamplingParams(stop=("a",), min_new_tokens=3)), ids, LENGTH)
    assert (text_of(pieces), pieces[-1].finish) == ("xax", FinishReason(kind="stop", matched="a"))


@given(
    st.lists(st.integers(3, BACKEND.get_vocab_size() - 1), min_size=1, max_size=40),
    st.lists(st.text("aeh ts", min_size=1, max_size=3), max_size=3),
    st.integers(0, 10),
    st.integers(1, 7),
)
def test_text_does_not_depend_on_how_tokens_are_cut(ids: list[int], stops: list[str], least: int, cut: int) -> None:
    sampling = SamplingParams(stop=tuple(stops), min_new_tokens=least)
    single = feed(TextPipeline(SHOWN, sampling), ids, LENGTH)
    chunked = feed(TextPipeline(SHOWN, sampling), ids, LENGTH, cut)
    assert text_of(single) == text_of(chunked)
    assert single[-1].finish == chunked[-1].finish
    assert sum(p.num_tokens for p in single) == sum(p.num_tokens for p in chunked)
