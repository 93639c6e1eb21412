"""JSON that comes in pieces: where a value ends, and the calls that models write as objects."""

from __future__ import annotations

import json
from enum import Enum, auto

_OPENING, _CLOSING = "{[", "}]"
_NAME = "name"
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id")  # keys that some models add


class JsonValue:
    """Finds the end of one JSON value. It must begin with the first character that is pushed."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar = False

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        for at, character in enumerate(text):
            if self._scalar and (character in ",}]" or character.isspace()):
                self.ended = True
                return at
            self._take(character)
            if self.ended:
                return at + 1
        return len(text)

    def _take(self, character: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                self.ended = not self._depth
        elif character == '"':
            self._in_string = True
        elif character in _OPENING:
            self._depth += 1
        elif character in _CLOSING:
            self._depth -= 1
            self.ended = self._depth <= 0
        elif not self._depth:
            self._scalar = True


class _At(Enum):
    OPENING = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class CallObject:
    """An object like `{"name": "f", "arguments": {...}}`, read piece by piece.

    `name` is known once it was there; `take_arguments` gives the text of the arguments as it comes. `failed`: this is
    no call; then `text` is all that was read.
    """

    def __init__(self) -> None:
        self.text = ""
        self.name: str | None = None
        self.ended = False
        self.failed = False
        self.has_arguments = False
        self._at = _At.OPENING
        self._key = ""
        self._value = JsonValue()
        self._raw = ""
        self._arguments = ""
        self._quoted = False  # the arguments are a string that holds JSON

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the object, up to its end or to where it failed."""
        at = 0
        while at < len(text) and not self.ended and not self.failed:
            at += self._step(text[at:])
        self.text += text[:at]
        return at

    def take_arguments(self) -> str:
        """The arguments' text since it was last asked for."""
        taken, self._arguments = self._arguments, ""
        return taken

    def _step(self, text: str) -> int:
        if self._at in (_At.KEY, _At.VALUE) and self._raw:
            return self._value_step(text)
        character = text[0]
        if character.isspace():
            return 1
        match self._at, character:
            case (_At.OPENING, "{") | (_At.COMMA, ","):
                self._at = _At.KEY
            case (_At.COLON, ":"):
                self._at = _At.VALUE
            case (_At.COMMA | _At.KEY, "}"):
                self.ended = True
                self.failed = self.name is None
            case (_At.KEY, '"'):
                return self._value_step(text)
            case (_At.VALUE, _):
                self._quoted = character == '"'
                return self._value_step(text)
            case _:
                self.failed = True
        return 1

    def _value_step(self, text: str) -> int:
        taken = self._value.push(text)
        self._raw += text[:taken]
        streams = self._at is _At.VALUE and self._key in _ARGUMENTS and not self._quoted
        if streams:
            self.has_arguments = True
            self._arguments += text[:taken]
        if self._value.ended:
            self._value_over()
        return taken

    def _value_over(self) -> None:
        raw, self._raw, self._value = self._raw, "", JsonValue()
        if self._at is _At.KEY:
            self._key = str(_loaded(raw))
            self.failed = self._key not in (_NAME, *_ARGUMENTS, *_OTHERS)
            self._at = _At.COLON
            return
        self._at = _At.COMMA
        if self._key == _NAME:
            name = _loaded(raw)
            self.failed = not isinstance(name, str) or not name
            self.name = name if isinstance(name, str) else None
        elif self._key in _ARGUMENTS and self._quoted:
            self.has_arguments = True
            self._arguments += str(_loaded(raw))


def _loaded(raw: str) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return None
