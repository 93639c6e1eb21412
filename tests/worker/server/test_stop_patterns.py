"""stop_regex: found at the first character that completes it, however the text is cut; in bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.server.stop_patterns import StopPattern, check_pattern
from worker.server.stop_strings import StopMatcher


def ends(text: str, pattern: str, *, trim: bool) -> tuple[str, bool]:
    """By the definition: the shortest beginning of the text that holds a match, without the match or with it."""
    for end in range(1, len(text) + 1):
        if (found := re.search(pattern, text[:end])) is not None:
            return text[: found.start() if trim else end], True
    return text, False


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, bool]:
    shown = ""
    for piece in pieces:
        matched = matcher.push(piece)
        shown += matched.text
        if matched.stop is not None:
            return shown, True
    return shown + matcher.flush(), False


@given(
    st.lists(st.text("ab1 \n漢", max_size=5), max_size=8),
    st.sampled_from(["a+b", "\\d{2}", "(?:ab|ba)1", "b\\s*1", "漢.", "a[^a]a", "\\n\\n"]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_the_result_does_not_depend_on_the_cuts(pieces: list[str], pattern: str, trim: bool) -> None:
    matcher = StopMatcher((), [StopPattern(pattern)], trim=trim)
    assert run(matcher, pieces) == ends("".join(pieces), pattern, trim=trim)


def test_strings_and_patterns_together_end_at_whichever_is_first() -> None:
    def matcher() -> StopMatcher:
        return StopMatcher(("END", "ZZ"), [StopPattern("[0-9]{3}")], trim=True)

    assert run(matcher(), ["abc 12", "3 END"]) == ("abc ", True)
    assert run(matcher(), ["abc E", "ND 123"]) == ("abc ", True)
    assert run(matcher(), ["abc 12", " EN", "Z"]) == ("abc 12 ENZ", False)


def test_only_as_much_is_held_back_as_a_match_can_take() -> None:
    matcher = StopMatcher((), [StopPattern("\\n\\n(?:User|Human):")], trim=True)
    assert [matcher.push(character).text for character in "a" * 20] == [""] * 8 + ["a"] * 12


def test_a_pattern_may_not_stop_before_it_may() -> None:
    matcher = StopMatcher((), [StopPattern("b")], trim=True)
    assert matcher.push("ab", may_stop=False).stop is None
    assert matcher.push("b").stop == "b"


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(a+)+b", "(.*){1,50}x", "(x+x+)+y", ".{1,1000}x"])
def test_time_is_bounded_whatever_the_pattern(pattern: str) -> None:
    matcher = StopMatcher((), [StopPattern(pattern)], trim=True)
    started_s = time.perf_counter()
    for _ in range(200):
        matcher.push("x" * 5)
    assert (time.perf_counter() - started_s) / 1000 < 0.05  # of a character; backtracking would take years


@pytest.mark.parametrize("pattern", ["(a", "(?=a)", "\\1", "(?:a{1000}){1000}", "a*", "|x", "[b-a]"])
def test_what_cannot_be_used_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="RE2|empty"):
        check_pattern(pattern)
