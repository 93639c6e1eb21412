"""Tool calls of Mistral's models, in the notation of both tokenizer generations."""

from __future__ import annotations

import re

from worker.server.parsers.calls import CallScanner

_ID = re.compile(r"\[CALL_ID\].*", re.DOTALL)
_ARGUMENTS = "[ARGS]"


class Mistral(CallScanner):
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` once for each call."""

    MARK = "[TOOL_CALLS]"

    def __init__(self) -> None:
        super().__init__()
        self._in_list = False

    def start(self) -> bool:
        """Content up to the mark."""
        if self.content_until((self.MARK,)) is None:
            return False
        self.mode = self.marked
        return True

    no_call = start

    def marked(self) -> bool:
        """Behind the mark: a list, an object, or a name."""
        self.held = self.held.lstrip()
        if not self.held:
            return False
        self._in_list = self.held.startswith("[")
        if self._in_list:
            self.held = self.held[1:]
            self.mode = self.item
        elif self.held.startswith("{"):
            return self.begin_object(self.MARK)
        else:
            self.mode = self.name
        return True

    def item(self) -> bool:
        """Inside a list, between its objects."""
        self.held = self.held.lstrip(", \t\r\n")
        if not self.held:
            return False
        if self.held.startswith("]"):
            self.held = self.held[1:]
            self._in_list = False
            self.mode = self.start
            return True
        return self.begin_object(self.MARK)

    def name(self) -> bool:
        """A name up to its arguments."""
        at = self.held.find("{")
        if at < 0:
            return False
        name = _ID.sub("", self.held[:at].replace(_ARGUMENTS, "")).strip()
        self.held = self.held[at:]
        return self.begin_arguments(name)

    def after_call(self) -> bool:
        """Another object of the list, or content and further marks."""
        self.mode = self.item if self._in_list else self.start
        return True

    def end(self) -> None:
        """A mark that nothing followed is content."""
        if self.mode in (self.marked, self.name):
            self.content(self.MARK + self.held)
        elif self.mode != self.item:
            super().end()
