"""stop_regex: patterns that end an answer. RE2 matches them: its time grows with the text only, whatever they are."""

from __future__ import annotations

import re
from re import _parser as python_parser  # type: ignore[attr-defined]

import re2

MOST_CHARS = 256  # of a match, and so of text that is held back for one
_MEMORY_BYTES = 2**20


def check_pattern(pattern: str) -> None:
    """Raise ValueError unless this is a pattern that can end an answer."""
    if _compiled(pattern).search("") is not None:
        raise ValueError(f"{pattern!r} matches an empty text, so every answer would end at once")


class StopPattern:
    """One pattern. A match has at most `most_chars` characters: a longer one is found, if at all, in its end."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.most_chars = _most_chars(source)
        self._search = _compiled(source).search

    def find(self, text: str) -> int | None:
        """Where the first match begins."""
        found = self._search(text)
        return None if found is None else int(found.start())


def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"{pattern!r} is no regular expression as RE2 takes them: {reason}") from None


def _most_chars(pattern: str) -> int:
    """How long a match can be, as far as Python's reading of the pattern tells."""
    try:
        widest: int = python_parser.parse(pattern).getwidth()[1]
        return max(1, min(widest, MOST_CHARS))
    except (re.error, OverflowError, RecursionError):
        return MOST_CHARS
