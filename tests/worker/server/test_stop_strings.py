"""Stop strings against a model that looks at one character after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.server.stop_strings import StopMatcher

STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=4)
PIECES = st.lists(st.tuples(st.text("ab c", max_size=4), st.booleans()), max_size=12)


def naive(pieces: list[tuple[str, bool]], stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first moment at which the text ends in a stop string, if stopping is allowed then."""
    text = ""
    for piece, may_stop in pieces:
        for character in piece:
            text += character
            ended = [stop for stop in stops if text.endswith(stop)]
            if ended and may_stop:
                stop = max(ended, key=len)
                return text[: -len(stop)], stop
    return text, None


def run(matcher: StopMatcher, pieces: list[tuple[str, bool]]) -> tuple[list[str], str | None]:
    shown = []
    for piece, may_stop in pieces:
        matched = matcher.push(piece, may_stop=may_stop)
        shown.append(matched.text)
        if matched.stop is not None:
            return shown, matched.stop
    shown.append(matcher.flush())
    return shown, None


@given(PIECES, STOPS)
def test_it_finds_what_a_naive_search_finds(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    shown, stop = run(StopMatcher(stops, trim=True), pieces)
    assert ("".join(shown), stop) == naive(pieces, stops)


@given(PIECES, STOPS)
def test_without_trimming_the_stop_string_is_shown(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    shown, stop = run(StopMatcher(stops, trim=False), pieces)
    text, expected = naive(pieces, stops)
    assert ("".join(shown), stop) == (text + (expected or ""), expected)


@given(st.text("ab c", max_size=30), STOPS)
def test_only_a_possible_beginning_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops, trim=True)
    shown = ""
    for end, character in enumerate(text, 1):
        matched = matcher.push(character)
        if matched.stop is not None:
            return
        shown += matched.text
        held = text[len(shown) : end]
        assert shown + held == text[:end]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_false_beginning_is_released() -> None:
    matcher = StopMatcher(["END"], trim=True)
    assert [matcher.push(c).text for c in "xENxEND"] == ["x", "", "", "ENx", "", "", ""]


def test_the_string_that_is_complete_first_wins_and_of_two_the_longer() -> None:
    assert StopMatcher(["cd", "abcd", "bc"], trim=True).push("abcd").stop == "bc"
    assert StopMatcher(["cd", "abcd"], trim=True).push("abcd").stop == "abcd"
