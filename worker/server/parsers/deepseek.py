"""Tool calls of DeepSeek V3 and R1, and V3.1's shorter notation."""

from __future__ import annotations

from worker.server.parsers.calls import CallScanner

_KIND = "function"


class DeepSeekV3(CallScanner):
    """A list in marks; each call is `function<sep>name`, a line break and a fenced JSON block, or `name<sep>{...}`."""

    LIST = "<｜tool▁calls▁begin｜>"
    LIST_END = "<｜tool▁calls▁end｜>"
    CALL = "<｜tool▁call▁begin｜>"
    CALL_END = "<｜tool▁call▁end｜>"
    SEPARATOR = "<｜tool▁sep｜>"

    def start(self) -> bool:
        """Content up to the list."""
        if self.content_until((self.LIST,)) is None:
            return False
        self.mark()
        self.mode = self.listed
        return True

    no_call = start

    def listed(self) -> bool:
        """Between the calls of the list."""
        call, over = self.held.find(self.CALL), self.held.find(self.LIST_END)
        if over >= 0 and not 0 <= call < over:
            self.held = self.held[over + len(self.LIST_END) :]
            self.mode = self.start
            return True
        if call < 0:
            return False
        self.held = self.held[call + len(self.CALL) :]
        self.mode = self.header
        return True

    def header(self) -> bool:
        """A call up to its arguments."""
        at = self.held.find("{")
        kind, separator, rest = self.held[: max(at, 0)].partition(self.SEPARATOR)
        if at < 0 or not separator:
            return False
        name = rest.splitlines()[0] if kind.strip() == _KIND and rest.strip() else kind
        self.held = self.held[at:]
        return self.begin_arguments(name.strip())

    def after_call(self) -> bool:
        """Up to the call's end."""
        if not self.skip_until(self.CALL_END):
            return False
        self.mode = self.listed
        return True

    def end(self) -> None:
        """Marks without a call are nobody's."""
        if self.mode == self.start:
            super().end()
