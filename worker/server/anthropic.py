"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, translated into chats and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request, Response

from common.errors import ANTHROPIC_PATH
from worker.server.answers import Answer
from worker.server.anthropic_schemas import (
    AnthropicMessage,
    AnthropicToolChoice,
    CountTokensBody,
    MessagesBody,
    OutputConfig,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from worker.server.chat import ChatReader, begin, chat_of, encode_request
from worker.server.errors import RequestFault, named_as
from worker.server.http import JsonAnswer, named_event, read_body
from worker.server.parsers.base import CallArguments, CallStart, Content, Part, Reasoning
from worker.server.prompts import new_id
from worker.server.replies import stream_reply, whole_reply
from worker.server.schemas import ChatRequest
from worker.server.service import Service

_FAILED = "The tool failed: "
_NAMES = {
    r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    r"response_format(\.json_schema)?": "output_config.format",
    r"reasoning_effort": "output_config.effort",
}


async def messages(service: Service, request: Request) -> Response:
    """Answer with a message, or with its events."""
    serving = service.admit()
    body = await read_body(request, MessagesBody, service.settings.max_body_bytes)
    service.check_model(body.model)
    with named_as(_NAMES):
        chat = await begin(serving, chat_request(body), new_id("msg_"))
        (reader,) = chat.readers
        writer = MessageEvents(reader, chat.generation.id, service.settings.model_name)
        if body.stream:
            return await stream_reply(request, chat.generation, writer, fault_event=error_event)
        await whole_reply(request, chat.generation)
    reader.read()
    return JsonAnswer(writer.head() | {"content": _blocks(reader), **_stop(reader), "usage": _usage(reader.answer)})


async def count_tokens(service: Service, request: Request) -> Response:
    """How many tokens the prompt of such a message would have."""
    serving = service.admit()
    body = await read_body(request, CountTokensBody, service.settings.max_body_bytes)
    service.check_model(body.model)
    with named_as(_NAMES):
        input_ids, _ = await encode_request(serving, chat_request(body))
    return JsonAnswer({"input_tokens": len(input_ids)})


def chat_request(body: CountTokensBody) -> ChatRequest:
    """The same wish as a chat. An assistant turn at the end is the beginning of the answer."""
    turns = [turn for message in body.messages for turn in _turns(message)]
    if body.system:
        turns.insert(0, {"role": "system", "content": _text(body.system)})
    fields: dict[str, Any] = {
        "messages": turns,
        "continue_final_message": turns[-1]["role"] == "assistant" and not turns[-1].get("tool_calls"),
        "separate_reasoning": True,
    }
    if body.thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": body.thinking.type != "disabled"}
    if body.output_config is not None:
        fields |= _output_fields(body.output_config)
    if body.tools:
        fields["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in body.tools
        ]
    if body.tool_choice is not None:
        fields["tool_choice"] = _choice(body.tool_choice)
        fields["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    if isinstance(body, MessagesBody):
        names = ("max_tokens", "stream", "temperature", "top_p", "top_k", "priority")
        fields |= {name: getattr(body, name) for name in names} | {"stop": body.stop_sequences}
    return chat_of(fields)


def _output_fields(config: OutputConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {"reasoning_effort": config.effort}
    if config.format is not None:
        schema = {"name": "output", "schema": config.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _choice(choice: AnthropicToolChoice) -> Any:
    if choice.type != "tool":
        return {"any": "required"}.get(choice.type, choice.type)
    if choice.name is None:
        raise RequestFault(400, "tool_choice.name is required.", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _turns(message: AnthropicMessage) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own, before the text beside them."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    turn: dict[str, Any] = {"role": message.role, "content": ""}
    calls, said = [], not message.content
    for block in message.content:
        match block:
            case TextBlock(text=text):
                turn["content"] += text
                said = True
            case ThinkingBlock(thinking=text):
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
            case ToolUseBlock(id=id_, name=name, input=given):
                calls.append({"id": id_, "function": {"name": name, "arguments": given or {}}})
            case ToolResultBlock():
                text = (_FAILED if block.is_error else "") + _text(block.content or "")
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
    if calls:
        turn["tool_calls"] = calls
    if said or calls or "reasoning_content" in turn:
        yield turn


def _text(given: str | Sequence[TextBlock]) -> str:
    return given if isinstance(given, str) else "".join(block.text for block in given)


def _usage(answer: Answer) -> dict[str, int]:
    """Anthropic counts cached tokens of the prompt apart."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": len(answer.output_ids),
    }


def _stop(reader: ChatReader) -> dict[str, Any]:
    finish, reason = reader.answer.finish, reader.finish_reason
    matched = finish.matched if finish is not None and isinstance(finish.matched, str) else None
    word = {"length": "max_tokens", "tool_calls": "tool_use"}.get(reason, "end_turn")
    return {"stop_reason": "stop_sequence" if matched and word == "end_turn" else word, "stop_sequence": matched}


def _blocks(reader: ChatReader) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reader.reasoning:
        blocks.append({"type": "thinking", "thinking": reader.reasoning, "signature": ""})
    if reader.content or not reader.calls:
        blocks.append({"type": "text", "text": reader.content})
    for call in reader.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> Any:
    """Arguments that were cut off are no object."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def error_event(fault: RequestFault) -> bytes:
    """The event that ends a stream that failed."""
    return named_event("error", fault.body(ANTHROPIC_PATH))


class MessageEvents:
    """message_start, then blocks one after the other, then message_delta and message_stop."""

    def __init__(self, reader: ChatReader, id_: str, model: str) -> None:
        self._reader = reader
        self._id = id_
        self._model = model
        self._begun = False
        self._block = -1  # the latest
        self._open: tuple[type, int] | None = None  # what the open block holds: its kind, and which call

    def head(self) -> dict[str, Any]:
        """A message without its content."""
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def news(self, answer: Answer) -> Iterator[bytes]:
        """Events for each part."""
        if not self._begun:
            self._begun = True
            nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = _usage(answer) | {"output_tokens": 0}
            yield named_event("message_start", {"message": self.head() | nothing | {"usage": usage}})
        if not answer.has_something_to_say:
            return
        for part in self._reader.read().parts:
            yield from self._part(part)

    def end(self) -> Iterator[bytes]:
        """What ends a message."""
        yield from self._close()
        delta, usage = _stop(self._reader), _usage(self._reader.answer)
        yield named_event("message_delta", {"delta": delta, "usage": usage})
        yield named_event("message_stop", {})

    def _part(self, part: Part) -> Iterator[bytes]:
        match part:
            case Content(text):
                yield from self._to((Content, 0), {"type": "text", "text": ""})
                delta = {"type": "text_delta", "text": text}
            case Reasoning(text):
                yield from self._to((Reasoning, 0), {"type": "thinking", "thinking": "", "signature": ""})
                delta = {"type": "thinking_delta", "thinking": text}
            case CallStart(index, name):
                call = {"type": "tool_use", "id": self._reader.calls[index].id, "name": name, "input": {}}
                yield from self._to((CallStart, index), call)
                return
            case CallArguments(_, text):
                delta = {"type": "input_json_delta", "partial_json": text}
        yield named_event("content_block_delta", {"index": self._block, "delta": delta})

    def _to(self, kind: tuple[type, int], block: dict[str, Any]) -> Iterator[bytes]:
        """Into a block of this kind."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._block += 1
        yield named_event("content_block_start", {"index": self._block, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield named_event("content_block_stop", {"index": self._block})
