"""The fields of tools and tool calls in OpenAI's chat requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from worker.server.fields import Body, Identifier

MAX_TOOLS = 1024
MAX_CALLS = 128  # of one message

ToolName = Annotated[str, Field(pattern=r"^[\w.-]{1,128}$")]


class Function(Body):
    """A function that the model may call. Arguments of forced calls are held to `parameters` whether or not `strict`
    is set."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """One of `tools`."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """The function of a named tool choice."""

    name: ToolName


class NamedTool(Body):
    """tool_choice that names the one function to be called."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Body):
    """A call of an earlier answer. OpenAI writes `arguments` as JSON text."""

    name: ToolName
    arguments: str | dict[str, Any] | None = None


class ToolCall(Body):
    """One of an assistant message's `tool_calls`."""

    id: Identifier = None
    type: Literal["function"] | None = None
    function: CalledFunction


Tools = Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool | None
ToolCalls = Annotated[list[ToolCall] | None, Field(max_length=MAX_CALLS)]
