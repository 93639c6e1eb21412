"""Bodies of Anthropic's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from worker.server.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    Body,
    Identifier,
    Priority,
    Stop,
    Temperature,
    TopP,
    Unbuilt,
)
from worker.server.tool_fields import MAX_TOOLS, ToolName

_UNSERVED = "this server takes text, tools and thinking only"


def _no_media(value: Any) -> Any:
    """A block of another kind gets a sentence of its own."""
    if isinstance(value, dict) and value.get("type") in ("image", "document", "search_result"):
        raise ValueError(_UNSERVED)
    return value


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(Body):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: Identifier = None
    name: ToolName
    input: dict[str, Any] | None = None


class ToolResultBlock(Body):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Identifier = None
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Body):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str


Block = Annotated[
    Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")],
    BeforeValidator(_no_media),
]


class AnthropicMessage(Body):
    """One turn."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class AnthropicTool(Body):
    """A tool with a JSON schema; Anthropic's own server tools are not there."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]


class AnthropicToolChoice(Body):
    """Whether and what to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingWish(Body):
    """Whether the answer shall show reasoning. A budget is not kept: the model ends its reasoning itself."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Body):
    """What the answer's text must match."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]


class OutputConfig(Body):
    """The form of the answer, and how much to reason for it."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    format: OutputFormat | None = None


class CountTokensBody(Body):
    """POST /v1/messages/count_tokens, and what it shares with /v1/messages."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[AnthropicTool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingWish | None = None
    output_config: OutputConfig | None = None
    output_format: Unbuilt = None  # its name while it was new
    mcp_servers: Unbuilt = None
    container: Unbuilt = None


class MessagesBody(CountTokensBody):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stop_sequences: Stop = None
    stream: bool | None = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    priority: Priority = None
