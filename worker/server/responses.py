"""POST /v1/responses: OpenAI's newer API without its memory, translated into chats and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request, Response

from worker.server.answers import Answer
from worker.server.chat import ChatReader, begin, chat_of
from worker.server.errors import RequestFault, named_as
from worker.server.http import JsonAnswer, named_event, read_body
from worker.server.prompts import new_id
from worker.server.replies import stream_reply, whole_reply
from worker.server.response_items import OutputItems
from worker.server.responses_schemas import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    ResponsesBody,
    ResponsesNamedTool,
    TextPart,
)
from worker.server.schemas import ChatRequest
from worker.server.service import Service
from worker.server.tokenizer import TextCodec

_NAMES = {
    r"messages.*": "input",
    r"max_completion_tokens": "max_output_tokens",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    r"response_format(\.json_schema)?": "text.format",
    r"reasoning_effort": "reasoning.effort",
}


async def create(service: Service, request: Request) -> Response:
    """Answer with a response object, or with its events."""
    serving = service.admit()
    body = await read_body(request, ResponsesBody, service.settings.max_body_bytes)
    service.check_model(body.model)
    with named_as(_NAMES):
        chat = await begin(serving, chat_request(body), new_id("resp_"))
        (reader,) = chat.readers
        head = _head(body, chat.generation.id, service.settings.model_name, reader.answer)
        events = ResponseEvents(head, reader, serving.tokenizer.tokenizer)
        if body.stream:
            return await stream_reply(request, chat.generation, events, fault_event=events.fault)
        await whole_reply(request, chat.generation)
    return JsonAnswer(await serving.tokenizer.run(events.whole))  # it counts the tokens of long reasoning


async def stored(service: Service, request: Request) -> Response:
    """Refused: there is none."""
    text = "This server keeps no responses; what POST /v1/responses answers is all there is."
    raise RequestFault(404, text, param="response_id")


def chat_request(body: ResponsesBody) -> ChatRequest:
    """The same wish as a chat."""
    turns = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else _turns(body.input)
    if body.instructions:
        turns.insert(0, {"role": "system", "content": body.instructions})
    fields: dict[str, Any] = {"messages": turns, "separate_reasoning": True}
    fields |= {
        name: getattr(body, name) for name in ("temperature", "top_p", "stream", "parallel_tool_calls", "priority")
    }
    fields["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.tools:
        fields["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in body.tools
        ]
    fields["tool_choice"] = body.tool_choice
    if isinstance(body.tool_choice, ResponsesNamedTool):
        fields["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _format(body.text.format.model_dump(by_alias=True, exclude_none=True))
    return chat_of(fields)


def _format(given: dict[str, Any]) -> dict[str, Any]:
    kind = given.pop("type")
    return {"type": kind, "json_schema": given} if kind == "json_schema" else {"type": kind}


def _turns(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Messages of a chat. Reasoning and calls that follow each other are one message of the assistant."""
    turns: list[dict[str, Any]] = []
    for item in items:
        match item:
            case MessageItem(role=role, content=content):
                begun = turns[-1] if turns and role == "assistant" and turns[-1].get("open") else None
                if begun is not None and not begun["content"]:
                    begun["content"] = _text(content)
                else:
                    turns.append({"role": role, "content": _text(content), "open": role == "assistant"})
            case CallOutputItem(call_id=id_, output=output):
                turns.append({"role": "tool", "tool_call_id": id_, "content": _text(output)})
            case CallItem(call_id=id_, name=name, arguments=arguments):
                call = {"id": id_, "function": {"name": name, "arguments": arguments}}
                _assistant(turns).setdefault("tool_calls", []).append(call)
            case ReasoningItem(content=thoughts):
                if thoughts:
                    _assistant(turns)["reasoning_content"] = _text(thoughts)
    for turn in turns:
        turn.pop("open", None)
    return turns


def _assistant(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that is being put together."""
    if not turns or not turns[-1].get("open"):
        turns.append({"role": "assistant", "content": "", "open": True})
    return turns[-1]


def _text(given: str | Sequence[TextPart]) -> str:
    return given if isinstance(given, str) else "".join(part.text for part in given)


def _head(body: ResponsesBody, id_: str, model: str, answer: Answer) -> dict[str, Any]:
    """What every response object repeats."""
    sampling = answer.request.sampling
    return {
        "id": id_,
        "object": "response",
        "created_at": int(time.time()),
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
        "store": False,
        "temperature": sampling.temperature,
        "text": body.text.model_dump(by_alias=True, exclude_none=True)
        if body.text is not None and body.text.format is not None
        else {"format": {"type": "text"}},
        "tool_choice": body.tool_choice.model_dump()
        if isinstance(body.tool_choice, ResponsesNamedTool)
        else body.tool_choice or "auto",
        "tools": [{"parameters": None, "strict": None} | tool.model_dump() for tool in body.tools or ()],
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }


class ResponseEvents:
    """response.created, then the items of the output one after the other, then response.completed or .incomplete."""

    def __init__(self, head: dict[str, Any], reader: ChatReader, tokenizer: TextCodec) -> None:
        self._head = head
        self._reader = reader
        self._tokenizer = tokenizer
        self._items = OutputItems(reader)
        self._number = 0

    def news(self, answer: Answer) -> Iterator[bytes]:
        """Events for each part."""
        if not self._number:
            begun = self._head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
            yield self._event("response.created", {"response": begun})
            yield self._event("response.in_progress", {"response": begun})
        if not answer.has_something_to_say:
            return
        for part in self._reader.read().parts:
            for name, fields in self._items.take(part):
                yield self._event(name, fields)

    def end(self) -> Iterator[bytes]:
        """The last item's end, and the whole object."""
        for name, fields in self._items.close(complete=not self._cut):
            yield self._event(name, fields)
        name = "response.incomplete" if self._cut else "response.completed"
        yield self._event(name, {"response": self._object()})

    def fault(self, fault: RequestFault) -> bytes:
        """The event that ends a stream that failed."""
        error = fault.body()["error"]
        return self._event("error", {"code": str(error["code"]), "message": fault.message, "param": fault.param})

    def whole(self) -> dict[str, Any]:
        """The object of an answer that has ended, and that nobody has read."""
        for part in self._reader.read().parts:
            for _ in self._items.take(part):
                pass
        for _ in self._items.close(complete=not self._cut):
            pass
        return self._object()

    @property
    def _cut(self) -> bool:
        finish = self._reader.answer.finish
        return finish is not None and finish.kind == "length"

    def _object(self) -> dict[str, Any]:
        return self._head | {
            "status": "incomplete" if self._cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if self._cut else None,
            "output": self._items.done,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        answer = self._reader.answer
        return {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": len(answer.output_ids),
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens(self._tokenizer)},
            "total_tokens": answer.prompt_tokens + len(answer.output_ids),
        }

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(name, fields | {"sequence_number": number})
