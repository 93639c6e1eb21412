"""Stop strings, matched on text: possible beginnings are held back, false ones released, the match is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.server.stop_patterns import StopPattern


@dataclass(frozen=True, slots=True)
class Matched:
    """What `StopMatcher.push` found: text that may be shown, and the stop string that ended the answer, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Looks for the stop string or pattern that is complete first; of several that end together the longest counts.

    So the result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str], patterns: Sequence[StopPattern] = (), *, trim: bool) -> None:
        self._stops = tuple(stops)
        self._patterns = tuple(patterns)
        self._trim = trim
        self._held = ""  # its every suffix-start may begin a stop string
        self._reach = max(map(len, stops), default=1) - 1  # most that can be held back for strings
        self._always_held = max((pattern.most_chars for pattern in patterns), default=0)

    def push(self, text: str, *, may_stop: bool = True) -> Matched:
        """Take the next piece of text. While `may_stop` is False a complete stop string is ordinary text."""
        if not self._patterns:
            return self._push(text, may_stop)
        shown = ""
        for character in text:  # a pattern counts at the first character that completes it
            matched = self._push(character, may_stop)
            shown += matched.text
            if matched.stop is not None:
                return Matched(shown, matched.stop)
        return Matched(shown)

    def _push(self, text: str, may_stop: bool) -> Matched:
        seen = len(self._held)
        self._held += text
        if may_stop and (found := self._first_complete(seen)) is not None:
            end, start, stop = found
            shown = self._held[: start if self._trim else end]
            self._held = ""
            return Matched(shown, stop)
        cut = self._possible_start()
        shown, self._held = self._held[:cut], self._held[cut:]
        return Matched(shown)

    def flush(self) -> str:
        """The answer ended otherwise: what was held back is ordinary text."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, seen: int) -> tuple[int, int, str] | None:
        """(end, start, stop) of the stop string that ends first behind the `seen` characters searched before."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = self._held.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                best = candidate if best is None else min(best, candidate)
        for pattern in self._patterns:
            if (begun := pattern.find(self._held)) is not None:
                candidate = (len(self._held), begun, pattern.source)
                best = candidate if best is None else min(best, candidate)
        return best

    def _possible_start(self) -> int:
        """Where the longest suffix begins that a stop string begins with; the length of the text if there is none."""
        held = self._held
        always = max(0, len(held) - self._always_held)
        for start in range(max(0, len(held) - self._reach), always):
            suffix = held[start:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return start
        return always
