"""Reasoning between `<think>` and `</think>` (DeepSeek R1, Qwen 3, and most others)."""

from __future__ import annotations

from worker.server.parsers.base import Content, OutputParser, Part, Reasoning, Scanner, possible_start

OPEN, CLOSE = "<think>", "</think>"


class Thinking(Scanner):
    """`inside`: the answer begins inside of the reasoning, since the prompt has opened it. Otherwise there is reasoning
    only if the answer begins with the opening mark. What follows is content as the model wrote it, without the line
    breaks at its beginning."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self._inside = inside
        self._lead = ""  # white space that only reasoning behind it makes reasoning

    def start(self) -> bool:
        """The first characters."""
        stripped = self.held.lstrip()
        if len(stripped) < len(OPEN) and OPEN.startswith(stripped):
            return False
        if stripped.startswith(OPEN):
            self.held = stripped[len(OPEN) :].lstrip() if self._inside else stripped[len(OPEN) :]
            self.mode = self.thinking
        elif self._inside:
            self.mode = self.thinking
        else:
            self.mode = self.plain
        return True

    def thinking(self) -> bool:
        """Up to the closing mark."""
        at = self.held.find(CLOSE)
        cut = at if at >= 0 else possible_start(self.held, (CLOSE,))
        self._think(self.held[:cut])
        self.held = self.held[cut:]
        if at < 0:
            return False
        self.held = self.held[len(CLOSE) :]
        self._lead = ""
        self.mode = self.behind
        return True

    def behind(self) -> bool:
        """White space between reasoning and content."""
        self.held = self.held.lstrip()
        if not self.held:
            return False
        self.mode = self.plain
        return True

    def plain(self) -> bool:
        """Content to the end, untouched: a parser of calls may follow."""
        if self.held:
            self.parts.append(Content(self.held))
            self.held = ""
        return False

    def end(self) -> None:
        """An unfinished mark is what it is."""
        if self.mode == self.thinking or (self.mode == self.start and self._inside):
            self._think(self.held)
        elif self.mode == self.start and self.held:
            self.parts.append(Content(self.held))

    def _think(self, text: str) -> None:
        text = self._lead + text
        kept = text.rstrip()
        self._lead = text[len(kept) :]
        if self._after_mark:
            kept = kept.lstrip()
        if kept:
            self._after_mark = False
            self.parts.append(Reasoning(kept))


class Chain:
    """First the reasoning is split off; calls are looked for in the content only."""

    def __init__(self, reasoning: OutputParser, calls: OutputParser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    def push(self, text: str) -> list[Part]:
        """Take the next piece."""
        return self._through(self._reasoning.push(text))

    def finish(self) -> list[Part]:
        """Take the end."""
        return self._through(self._reasoning.finish()) + self._calls.finish()

    def _through(self, parts: list[Part]) -> list[Part]:
        result: list[Part] = []
        for part in parts:
            result += self._calls.push(part.text) if isinstance(part, Content) else [part]
        return result
