"""Parts of an answer, and what all parsers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; `index` counts the calls of one answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class OutputParser(Protocol):
    """Takes an answer's text piece by piece. However it is cut, the parts add up to the same."""

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        ...

    def finish(self) -> list[Part]:
        """The answer is over: what was held back."""
        ...


class PlainText:
    """Everything is content."""

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class FirstCallOnly:
    """Leaves out all calls but the first: where no grammar holds the model to one, the client still gets one."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Part]:
        """Take the next piece."""
        return self._kept(self._parser.push(text))

    def finish(self) -> list[Part]:
        """Take the end."""
        return self._kept(self._parser.finish())

    def _kept(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if not isinstance(part, CallStart | CallArguments) or part.index == 0]


def possible_start(text: str, markers: Sequence[str]) -> int:
    """Where the longest end of `text` begins that one of the markers begins with; its length if there is none."""
    for start in range(max(0, len(text) - max(map(len, markers)) + 1), len(text)):
        end = text[start:]
        if any(marker.startswith(end) for marker in markers):
            return start
    return len(text)


def merged(parts: Sequence[Part]) -> list[Part]:
    """The same with neighbours of one kind joined."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match last, part:
            case (Content(before), Content(text)):
                result[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                result[-1] = Reasoning(before + text)
            case (CallArguments(index, before), CallArguments(other, text)) if index == other:
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(part)
    return result


class Scanner(ABC):
    """A parser as a machine: the current mode consumes from `held` and returns whether it got anywhere.

    White space before and behind what is not content is dropped; inside content it is kept.
    """

    def __init__(self) -> None:
        self.held = ""
        self.parts: list[Part] = []
        self.mode: Callable[[], bool] = self.start
        self._space = ""  # white space that is content only if content follows
        self._after_mark = True  # nothing of the content has come since the beginning or the last call

    @abstractmethod
    def start(self) -> bool:
        """The first mode."""

    def end(self) -> None:
        """The answer is over: make parts of `held`. By default it is content."""
        self.content(self.held)

    def push(self, text: str) -> list[Part]:
        """Take the next piece."""
        self.held += text
        while self.mode():
            pass
        return self._taken()

    def finish(self) -> list[Part]:
        """Take the end."""
        self.end()
        self.held = ""
        if not self._after_mark and self._space:
            self.parts.append(Content(self._space))
            self._space = ""
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self.parts = self.parts, []
        return parts

    def content(self, text: str) -> None:
        """Text for the reader; white space at its end waits."""
        text = self._space + text
        if self._after_mark:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._after_mark = False
            self.parts.append(Content(kept))

    def mark(self) -> None:
        """A marker came: the white space around it is nobody's."""
        self._space = ""
        self._after_mark = True

    def content_until(self, markers: Sequence[str]) -> str | None:
        """Consume content up to the first of these markers, and that; None if none has come yet."""
        found = min(((at, m) for m in markers if (at := self.held.find(m)) >= 0), default=None)
        if found is None:
            cut = possible_start(self.held, markers)
            self.content(self.held[:cut])
            self.held = self.held[cut:]
            return None
        at, marker = found
        self.content(self.held[:at])
        self.held = self.held[at + len(marker) :]
        return marker

    def skip_until(self, marker: str) -> bool:
        """Drop everything up to a marker, and that; False if it has not come yet."""
        at = self.held.find(marker)
        if at < 0:
            self.held = self.held[possible_start(self.held, (marker,)) :]
            return False
        self.held = self.held[at + len(marker) :]
        return True
