"""What a request's tools mean for its prompt and for its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from worker.grammar.json_schema import SchemaFault, prepared
from worker.sampling_params import GrammarAsked
from worker.server.errors import RequestFault
from worker.server.parsers.base import OutputParser
from worker.server.parsers.calls import Hermes, Llama3
from worker.server.parsers.choose import Families
from worker.server.parsers.thinking import CLOSE, Chain, Thinking
from worker.server.tool_fields import NamedTool, Tool, ToolChoice

_UNKNOWN_CALLS = (
    "tools: this server does not know how its model writes calls. Start it with --tool-call-parser, or send "
    "tool_choice 'required', a named function, or 'none'."
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` are those that the model shall know of; `forced`: those of which it must call one, None if it may
    choose."""

    tools: Sequence[Tool] = ()
    forced: Sequence[Tool] | None = None
    parallel: bool = True  # several calls in one answer

    @classmethod
    def of(cls, tools: Sequence[Tool] | None, choice: ToolChoice, parallel: bool | None, families: Families) -> ToolUse:
        """Raises RequestFault."""
        named = choice.function.name if isinstance(choice, NamedTool) else None
        if not tools:
            if named is not None or choice == "required":
                raise RequestFault(400, "tool_choice needs tools to choose from.", param="tool_choice")
            return cls()
        _check(tools)
        if choice == "none":
            return cls()
        if choice == "required":
            return cls(tools, tools, parallel is not False)
        if named is not None:
            wanted = [tool for tool in tools if tool.function.name == named]
            if not wanted:
                raise RequestFault(400, f"tool_choice names {named!r}, which is not in tools.", param="tool_choice")
            return cls(tools, wanted, parallel=False)
        if families.calls is None:
            raise RequestFault(400, _UNKNOWN_CALLS, param="tools")
        return cls(tools, None, parallel is not False)

    @property
    def described(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools]

    def grammar(self, families: Families, *, inside: bool) -> GrammarAsked | None:
        """What a forced answer must match: calls and nothing else, behind the reasoning if the prompt has begun one.
        Raises RequestFault for parameters that no grammar can follow."""
        if self.forced is None:
            return None
        hermes = families.calls == "hermes"
        opening, closing = ("<tool_call>\n", "\n</tool_call>") if hermes else ("", "")
        key = "parameters" if families.calls == "llama3" else "arguments"
        form: dict[str, Any] = {
            "type": "tags_with_separator",
            "tags": [
                {
                    "type": "tag",
                    "begin": f'{opening}{{"name": {json.dumps(tool.function.name)}, "{key}": ',
                    "content": {"type": "json_schema", "json_schema": self._schema(tool)},
                    "end": "}" + closing,
                }
                for tool in self.forced
            ],
            "separator": "\n" if hermes else "; ",
            "at_least_one": True,
            "stop_after_first": not self.parallel,
        }
        if inside:
            thought = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": f"{CLOSE}\n\n"}
            form = {"type": "sequence", "elements": [thought, form]}
        text = json.dumps({"type": "structural_tag", "format": form})
        return GrammarAsked(kind="structural_tag", text=text, param="tool_choice")

    def forced_parser(self, families: Families, *, reasoning: bool, inside: bool) -> OutputParser:
        """Reads answers that match `grammar`."""
        finder: OutputParser = Hermes() if families.calls == "hermes" else Llama3()
        return Chain(Thinking(inside=True), finder) if reasoning and inside else finder

    def _schema(self, tool: Tool) -> Any:
        at = next(i for i, each in enumerate(self.tools) if each is tool)
        try:
            return json.loads(prepared(tool.function.parameters or {"type": "object", "properties": {}}))
        except SchemaFault as fault:
            param = f"tools[{at}].function.parameters"
            raise RequestFault(400, f"{param}: {fault}.", param=param) from None


def _check(tools: Sequence[Tool]) -> None:
    """Names differ, and parameters are JSON schemas."""
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.function.name in seen:
            param = f"tools[{i}].function.name"
            raise RequestFault(400, f"{param}: {tool.function.name!r} is there twice.", param=param)
        seen.add(tool.function.name)
        try:
            jsonschema.Draft202012Validator.check_schema(tool.function.parameters or {})
        except (jsonschema.SchemaError, RecursionError):
            param = f"tools[{i}].function.parameters"
            raise RequestFault(400, f"{param}: it is no valid JSON schema.", param=param) from None
