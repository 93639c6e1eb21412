"""Prompts out of files: one JSON object a line, or a JSON array of them; plain, .gz or .xz.

custom (and sharegpt): `prompt` or `question`, with `output_tokens` (or max_tokens) where the answer's length is known,
or the recorded `answer`; or `conversations`, of which the first message is the prompt and the second tells how long its
answer is; or `turns`, a list of what the user says, one after the other.
openai: bodies of OpenAI's requests (`messages`, `prompt` or `input`, max_tokens, ...), or lines of a batch file that
hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import orjson

from benchmarks.serve.prompts import Prompt
from benchmarks.serve.workloads import Session, Turn
from benchmarks.traces import fault_of, text_lines
from common.errors import UserError
from common.model_tokenizer import ModelTokenizer

_FLAG = "--dataset-path"
_LENGTHS = ("max_completion_tokens", "max_tokens", "output_tokens")
_OWN = ("model", "stream", "stream_options", "messages", "prompt", "input", *_LENGTHS)  # of a body, set by the run


@dataclass(frozen=True, slots=True)
class Reader:
    """How lines become sessions. `output_tokens` is the length of answers where not None; else the line or, by the
    tokenizer, the recorded answer tells. Prompts longer than `context_tokens` with their answer are left out."""

    chat: bool
    tokenizer: ModelTokenizer | None
    output_tokens: int | None = None
    context_tokens: int | None = None
    embeds: bool = False

    def custom(self, entry: dict[str, Any]) -> Session | None:
        """Raises KeyError, TypeError or IndexError if the line has another form."""
        if "turns" in entry:
            return Session(tuple(self._turn(str(text), None) for text in entry["turns"])) if entry["turns"] else None
        if "conversations" in entry:
            texts = [_text_of(message) for message in entry["conversations"][:2]]
            if len(texts) < 2 or not all(texts):
                return None
            return self._fitting(self._turn(texts[0], self._tokens(texts[1])))
        text = entry["prompt"] if "prompt" in entry else entry["question"]
        if not isinstance(text, str):
            raise TypeError("prompt is not a text")
        recorded = entry.get("answer")
        length = _length_of(entry) or (self._tokens(recorded) if isinstance(recorded, str) else None)
        return self._fitting(self._turn(text, length))

    def openai(self, entry: dict[str, Any]) -> Session | None:
        """Raises KeyError or TypeError if the line has another form."""
        body = entry.get("body", entry)
        key = "messages" if self.chat else "input" if self.embeds else "prompt"
        if key not in body:
            raise KeyError(key)
        if not isinstance(body[key], list if self.chat else (str, list) if self.embeds else str):
            raise TypeError(f"{key} has another type")
        rest = {name: value for name, value in body.items() if name not in _OWN}
        return Session((Turn(body[key], self.output_tokens or _length_of(body), fields=rest),))

    def _turn(self, text: str, output_tokens: int | None) -> Turn:
        prompt: Prompt = [{"role": "user", "content": text}] if self.chat else text
        return Turn(prompt, self.output_tokens or output_tokens)

    def _fitting(self, turn: Turn) -> Session | None:
        if self.context_tokens is not None:
            prompt = turn.prompt if isinstance(turn.prompt, str) else turn.prompt[0]["content"]
            if (self._tokens(prompt) or 0) + (turn.output_tokens or 0) > self.context_tokens:
                return None
        return Session((turn,))

    def _tokens(self, text: str) -> int | None:
        return None if self.tokenizer is None else len(self.tokenizer.encode(text, add_special_tokens=False)) or 1


def from_file(path: Path, read: Callable[[dict[str, Any]], Session | None], count: int) -> list[Session]:
    """`count` sessions of a file, from its start again if it has fewer. Raises UserError."""
    found: list[Session] = []
    for place, entry in _entries(path):
        try:
            session = read(entry)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise UserError(f"{_FLAG}: {place} of {path} is not of this dataset ({fault_of(error)}).") from None
        if session is not None:
            found.append(session)
        if len(found) == count:
            break
    if not found:
        raise UserError(f"{_FLAG}: {path} holds no prompt that can be used.")
    return list(islice(cycle(found), count))


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Objects with where they stand."""
    lines = text_lines(path, flag=_FLAG)
    for number, line in lines:
        try:
            if number == 1 and line.lstrip().startswith("["):
                whole = orjson.loads(line + "".join(text for _, text in lines))
                yield from ((f"entry {index}", entry) for index, entry in enumerate(whole, 1))
                return
            yield f"line {number}", orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UserError(f"{_FLAG}: line {number} of {path} is not JSON ({error}).") from None


def _text_of(message: dict[str, Any]) -> str:
    return str(message["value"] if "value" in message else message["content"])


def _length_of(entry: dict[str, Any]) -> int | None:
    return next((int(entry[name]) for name in _LENGTHS if entry.get(name)), None)
