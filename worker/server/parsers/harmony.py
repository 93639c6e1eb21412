"""gpt-oss writes messages to channels: analysis is reasoning, final is content, commentary may be a call."""

from __future__ import annotations

import re

from worker.server.parsers.base import CallArguments, CallStart, Reasoning, Scanner

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_NAME = re.compile(r"^(?:assistant)?[^<]*?<\|channel\|>\s*(\w+)|^\s*(\w+)")


class Harmony(Scanner):
    """Both parsers in one, since reasoning and calls are messages of the same kind. Without `calls` or without
    `reasoning` such messages are content."""

    def __init__(self, *, calls: bool, reasoning: bool) -> None:
        super().__init__()
        self._calls = calls
        self._reasoning = reasoning
        self._num_calls = 0
        self._kind = ""

    def start(self) -> bool:
        """Between messages; text outside of them is content."""
        if self.content_until((_CHANNEL, _START)) is None:
            return False
        self.mode = self.header
        return True

    def header(self) -> bool:
        """Channel and recipient."""
        at = self.held.find(_MESSAGE)
        if at < 0:
            return False
        header, self.held = self.held[:at], self.held[at + len(_MESSAGE) :]
        recipient, name = _RECIPIENT.search(header), _NAME.match(header)
        channel = (name[1] or name[2]) if name is not None else ""
        self.mark()
        self._kind = "analysis" if channel == "analysis" and self._reasoning else ""
        if recipient is not None and self._calls:
            self._kind = "call"
            self.parts.append(CallStart(self._num_calls, recipient[1]))
            self._num_calls += 1
        self.mode = self.body
        return True

    def body(self) -> bool:
        """Inside a message."""
        marker = self._other_until() if self._kind else self.content_until(_ENDS)
        if marker is None:
            return False
        self.mark()
        self.mode = self.header if marker in (_START, _CHANNEL) else self.start
        return True

    def _other_until(self) -> str | None:
        """As content_until, for reasoning and arguments."""
        found = min(((at, m) for m in _ENDS if (at := self.held.find(m)) >= 0), default=None)
        cut = found[0] if found is not None else self._certain()
        if cut:
            text, self.held = self.held[:cut], self.held[cut:]
            call = self._kind == "call"
            self.parts.append(CallArguments(self._num_calls - 1, text) if call else Reasoning(text))
        if found is None:
            return None
        self.held = self.held[len(found[1]) :]
        return found[1]

    def _certain(self) -> int:
        at = self.held.rfind("<")
        return len(self.held) if at < 0 or not any(end.startswith(self.held[at:]) for end in _ENDS) else at

    def end(self) -> None:
        """A header without its message is nobody's."""
        if self.mode == self.start or (self.mode == self.body and not self._kind):
            self.content(self.held)
        elif self.mode == self.body and self.held:
            call = self._kind == "call"
            self.parts.append(CallArguments(self._num_calls - 1, self.held) if call else Reasoning(self.held))
