"""Which parsers a model's answers need: by flag, or by the marks in its chat template and its architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from worker.server.parsers.base import OutputParser, PlainText
from worker.server.parsers.calls import Hermes, Llama3
from worker.server.parsers.deepseek import DeepSeekV3
from worker.server.parsers.harmony import Harmony
from worker.server.parsers.mistral import Mistral
from worker.server.parsers.thinking import OPEN, Chain, Thinking

CallFamily = Literal["hermes", "llama3", "mistral", "deepseekv3", "gpt-oss"]
ReasoningFamily = Literal["deepseek-r1", "qwen3", "gpt-oss"]

_CALL_PARSERS: Mapping[CallFamily, Callable[[], OutputParser]] = {
    "hermes": Hermes,
    "llama3": Llama3,
    "mistral": Mistral,
    "deepseekv3": DeepSeekV3,
}
# Most specific first. A template that mentions the mark teaches the model to write it.
_CALL_MARKS: tuple[tuple[str, CallFamily], ...] = (
    ("<|channel|>", "gpt-oss"),
    ("<｜tool▁call", "deepseekv3"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("[AVAILABLE_TOOLS]", "mistral"),
    ("<|python_tag|>", "llama3"),
)
_CALL_ARCHITECTURES: tuple[tuple[str, CallFamily], ...] = (
    ("GptOss", "gpt-oss"),
    ("Deepseek", "deepseekv3"),
    ("Mistral", "mistral"),
)
_REASONING_MARKS: tuple[tuple[str, ReasoningFamily], ...] = (("<|channel|>", "gpt-oss"), (OPEN, "qwen3"))


@dataclass(frozen=True, slots=True)
class Families:
    """How one model writes calls and reasoning; None: it does not, as far as anyone knows."""

    calls: CallFamily | None = None
    reasoning: ReasoningFamily | None = None

    @property
    def keeps_specials(self) -> bool:
        """Whether marks of the calls are special tokens, which answers leave out otherwise."""
        return self.calls not in (None, "hermes")

    def parser(self, *, calls: bool, reasoning: bool, inside: bool) -> OutputParser:
        """For one answer. `inside`: the prompt ends within the reasoning."""
        if "gpt-oss" in (self.calls, self.reasoning):
            return Harmony(calls=calls and self.calls == "gpt-oss", reasoning=reasoning and self.reasoning == "gpt-oss")
        make = _CALL_PARSERS.get(self.calls) if calls and self.calls is not None else None
        finder: OutputParser = PlainText() if make is None else make()
        if not reasoning or self.reasoning is None:
            return finder
        return Chain(Thinking(inside=inside), finder)


def families(
    tool_call_parser: str, reasoning_parser: str, template: str | None, architectures: Sequence[str]
) -> Families:
    """What the flags say; "auto" looks at the template and at the architecture."""
    calls = {"qwen": "hermes", "none": None}.get(tool_call_parser, tool_call_parser)
    if calls == "auto":
        calls = _by_mark(_CALL_MARKS, template) or _by_name(_CALL_ARCHITECTURES, architectures)
    reasoning = None if reasoning_parser == "none" else reasoning_parser
    if reasoning == "auto":
        reasoning = _by_mark(_REASONING_MARKS, template)
    return Families(calls, reasoning)  # type: ignore[arg-type]  # the flags' types allow no other words


def _by_mark(marks: Sequence[tuple[str, str]], template: str | None) -> str | None:
    return next((family for mark, family in marks if mark in (template or "")), None)


def _by_name(names: Sequence[tuple[str, str]], architectures: Sequence[str]) -> str | None:
    return next((family for name, family in names for each in architectures if each.startswith(name)), None)
