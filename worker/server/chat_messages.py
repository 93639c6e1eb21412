"""Messages as chat templates take them. A template that knows no tools gets them as text, in Hermes's way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from worker.server.errors import RequestFault
from worker.server.schemas import Message
from worker.server.tool_fields import ToolCall

_TOOLS = """\
You may call functions. Their signatures, one a line:
<tools>
{tools}
</tools>
For each call write a JSON object with the function's name and arguments in marks of its own:
<tool_call>
{{"name": ..., "arguments": {{...}}}}
</tool_call>"""


def template_messages(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, takes_tools: bool = True
) -> list[dict[str, Any]]:
    """Content is a text, developer another word for system, and the arguments of calls are objects. Unless the
    template `takes_tools`, these and all calls are written out. Raises RequestFault."""
    written = not takes_tools and (bool(tools) or any(message.tool_calls for message in messages))
    result = [_as_text(message, i) if written else _plain(message, i) for i, message in enumerate(messages)]
    if written and tools:
        text = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if result and result[0]["role"] == "system":
            result[0] = result[0] | {"content": f"{result[0]['content']}\n\n{text}"}
        else:
            result.insert(0, {"role": "system", "content": text})
    return result


def _plain(message: Message, index: int) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": message.content or ""}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [_call(call, index, j) for j, call in enumerate(message.tool_calls)]
    return plain


def _as_text(message: Message, index: int) -> dict[str, Any]:
    plain = _plain(message, index)
    if plain["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{plain['content']}\n</tool_response>"}
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in plain.pop("tool_calls", ())
    ]
    return plain | {"content": "\n".join([plain["content"], *calls] if plain["content"] else calls)}


def _call(call: ToolCall, message: int, index: int) -> dict[str, Any]:
    """Templates take arguments as an object."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        param = f"messages[{message}].tool_calls[{index}].function.arguments"
        raise RequestFault(400, f"{param}: must be a JSON object.", param=param)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
