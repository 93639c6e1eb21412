"""Tool calls as JSON objects: Hermes and Qwen, Llama 3, and the plain list of objects that forced calls are."""

from __future__ import annotations

from abc import abstractmethod

from worker.server.parsers.base import CallArguments, CallStart, Scanner
from worker.server.parsers.json_scan import CallObject, JsonValue

NO_ARGUMENTS = "{}"


class CallScanner(Scanner):
    """Modes for the bodies of calls. `after_call` is the mode behind a call's JSON."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0
        self._object = CallObject()
        self._begun = False
        self._lead = ""  # what stood before an object, if that turns out to be none
        self._value = JsonValue()

    @abstractmethod
    def after_call(self) -> bool:
        """The mode behind a call."""

    @abstractmethod
    def no_call(self) -> bool:
        """The mode behind an object that was no call, and is content."""

    def begin_object(self, lead: str) -> bool:
        """An object follows that should be a call; `lead` is the text before it."""
        self._object, self._begun, self._lead = CallObject(), False, lead
        self.mode = self.object
        return True

    def object(self) -> bool:
        """Inside an object."""
        if not self.held:
            return False
        call = self._object
        self.held = self.held[call.push(self.held) :]
        if call.failed and not self._begun:
            self.content(self._lead + call.text)
            self.mode = self.no_call
            return True
        if call.name is not None and (call.has_arguments or call.ended) and not self._begun:
            self._begun = True
            self.start_call(call.name)
        if self._begun and (arguments := call.take_arguments()):
            self.parts.append(CallArguments(self._num_calls - 1, arguments))
        if call.ended or call.failed:
            if not call.has_arguments:
                self.parts.append(CallArguments(self._num_calls - 1, NO_ARGUMENTS))
            self.mode = self.after_call
            return True
        return False

    def start_call(self, name: str) -> None:
        """A call begins."""
        self.mark()
        self.parts.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def begin_arguments(self, name: str) -> bool:
        """The JSON of a call's arguments follows, and nothing around it."""
        self.start_call(name)
        self._value = JsonValue()
        self.mode = self.arguments
        return True

    def arguments(self) -> bool:
        """Inside of arguments that stand by themselves."""
        if not self.held:
            return False
        taken = self._value.push(self.held)
        if taken:
            self.parts.append(CallArguments(self._num_calls - 1, self.held[:taken]))
            self.held = self.held[taken:]
        if self._value.ended:
            self.mode = self.after_call
            return True
        return False

    def end(self) -> None:
        """An object that has not become a call is content; of a call nothing more is known."""
        if self.mode == self.object and not self._begun:
            self.content(self._lead + self._object.text)
        elif self.mode not in (self.object, self.after_call, self.arguments):
            self.content(self.held)


class Hermes(CallScanner):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as often as there are calls (Hermes, Qwen)."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def start(self) -> bool:
        """Content up to a call."""
        if self.content_until((self.OPEN,)) is None:
            return False
        return self.begin_object(self.OPEN)

    no_call = start

    def after_call(self) -> bool:
        """Up to the closing mark."""
        if not self.skip_until(self.CLOSE):
            return False
        self.mode = self.start
        return True


class Llama3(CallScanner):
    """`{"name": ..., "parameters": ...}` at the beginning or behind `<|python_tag|>`; further ones behind `;`."""

    TAG = "<|python_tag|>"

    def start(self) -> bool:
        """Only here an object may stand without a tag."""
        self.held = self.held.lstrip()
        if not self.held:
            return False
        self.mode = self.text
        return self.begin_object("") if self.held.startswith("{") else True

    def text(self) -> bool:
        """Content up to a tag."""
        if self.content_until((self.TAG,)) is None:
            return False
        self.mode = self.tagged
        return True

    no_call = text

    def tagged(self) -> bool:
        """Behind a tag."""
        self.held = self.held.lstrip()
        return bool(self.held) and self.begin_object(self.TAG)

    def after_call(self) -> bool:
        """Another call, or text."""
        self.held = self.held.lstrip("; \t\r\n")
        if not self.held:
            return False
        self.mode = self.text
        return self.begin_object("") if self.held.startswith("{") else True
