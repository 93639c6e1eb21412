"""The body of OpenAI's /v1/responses, as far as nothing needs to be remembered between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from worker.server.fields import MAX_MESSAGES, Body, Identifier, NumNewTokens, Priority, Temperature, TopP, Unbuilt
from worker.server.fields import unbuilt as _unbuilt
from worker.server.schemas import JsonSchemaFormat
from worker.server.tool_fields import MAX_TOOLS, ToolName


def _stateless(value: Any) -> None:
    if value not in (None, False):
        raise ValueError("this server keeps nothing between requests; send the whole conversation in input")


Stateful = Annotated[Any, AfterValidator(_stateless)]


def _known_item(value: Any) -> Any:
    """A message may leave its type out. Items of other kinds get a sentence of their own."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type") or "message"
    if kind == "item_reference":
        _stateless(kind)
    if kind not in ("message", "function_call", "function_call_output", "reasoning"):
        raise ValueError(f"this server takes messages, function calls and reasoning, not {str(kind)[:64]!r}")
    return value | {"type": kind}


class TextPart(Body):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class MessageItem(Body):
    """A message of the conversation."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]


class CallItem(Body):
    """A function call of an earlier answer."""

    type: Literal["function_call"]
    call_id: Identifier = None
    name: ToolName
    arguments: str


class CallOutputItem(Body):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: Identifier = None
    output: str | list[TextPart]


class ReasoningItem(Body):
    """Reasoning of an earlier answer."""

    type: Literal["reasoning"]
    content: list[TextPart] | None = None


Item = Annotated[
    Annotated[MessageItem | CallItem | CallOutputItem | ReasoningItem, Field(discriminator="type")],
    BeforeValidator(_known_item),
]


class ResponsesTool(Body):
    """A function; OpenAI's own tools are not there."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesNamedTool(Body):
    """tool_choice that names a function."""

    type: Literal["function"]
    name: ToolName


class TextFormat(JsonSchemaFormat):
    """text.format."""

    type: Literal["text", "json_object", "json_schema"]


class TextWish(Body):
    """The form of the answer's text."""

    format: TextFormat | None = None


class ReasoningWish(Body):
    """How much to reason."""

    effort: Annotated[str, Field(max_length=32)] | None = None


class ResponsesBody(Body):
    """POST /v1/responses."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: NumNewTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stream: bool | None = None
    tools: Annotated[list[ResponsesTool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextWish | None = None
    reasoning: ReasoningWish | None = None
    metadata: dict[str, str] | None = None
    priority: Priority = None
    previous_response_id: Stateful = None
    conversation: Stateful = None
    store: Stateful = None
    background: Stateful = None
    prompt: Unbuilt = None
    include: Annotated[Any, _unbuilt([], ["reasoning.encrypted_content"])] = None  # reasoning is there, in plain
    max_tool_calls: Annotated[Any, _unbuilt()] = None
    top_logprobs: Annotated[Any, _unbuilt(0)] = None
    truncation: Annotated[Any, _unbuilt("disabled")] = None
