"""The output items of a response, put together from an answer's parts, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worker.server.chat import ChatReader
from worker.server.parsers.base import CallArguments, CallStart, Content, Part, Reasoning
from worker.server.prompts import new_id

ItemEvent = tuple[str, dict[str, Any]]


class OutputItems:
    """`done`: the items that are whole. At most one more is open."""

    def __init__(self, reader: ChatReader) -> None:
        self.done: list[dict[str, Any]] = []
        self._reader = reader
        self._item: dict[str, Any] | None = None
        self._kind: tuple[type, int] | None = None
        self._text = ""

    def take(self, part: Part) -> Iterator[ItemEvent]:
        """The events of one more part."""
        match part:
            case Content(text):
                if self._kind != (Content, 0):
                    yield from self._open((Content, 0), _message(new_id("msg_")))
                    yield "response.content_part.added", self._at() | {"part": _output_text("")}
                yield "response.output_text.delta", self._at() | {"delta": text, "logprobs": []}
            case Reasoning(text):
                if self._kind != (Reasoning, 0):
                    item = {"type": "reasoning", "id": new_id("rs_"), "summary": [], "status": "in_progress"}
                    yield from self._open((Reasoning, 0), item)
                yield "response.reasoning_text.delta", self._at() | {"delta": text}
            case CallStart(index, name):
                call = {"type": "function_call", "id": new_id("fc_"), "call_id": self._reader.calls[index].id}
                status = {"name": name, "arguments": "", "status": "in_progress"}
                yield from self._open((CallStart, index), call | status)
                return
            case CallArguments(_, text):
                yield "response.function_call_arguments.delta", self._at(content=False) | {"delta": text}
        self._text += text

    def close(self, *, complete: bool = True) -> Iterator[ItemEvent]:
        """The end of the open item. `complete`: the model ended it, not a limit."""
        item, kind, text = self._item, self._kind, self._text
        if item is None or kind is None:
            return
        item["status"] = "completed" if complete else "incomplete"
        if kind[0] is Content:
            item["content"] = [_output_text(text)]
            yield "response.output_text.done", self._at() | {"text": text, "logprobs": []}
            yield "response.content_part.done", self._at() | {"part": _output_text(text)}
        elif kind[0] is Reasoning:
            item["content"] = [{"type": "reasoning_text", "text": text}]
            yield "response.reasoning_text.done", self._at() | {"text": text}
        else:
            item["arguments"] = text
            told = {"arguments": text, "name": item["name"]}
            yield "response.function_call_arguments.done", self._at(content=False) | told
        yield "response.output_item.done", {"output_index": len(self.done), "item": item}
        self.done.append(item)
        self._item = self._kind = None

    def _open(self, kind: tuple[type, int], item: dict[str, Any]) -> Iterator[ItemEvent]:
        yield from self.close()
        self._item, self._kind, self._text = item, kind, ""
        yield "response.output_item.added", {"output_index": len(self.done), "item": item}

    def _at(self, *, content: bool = True) -> dict[str, Any]:
        assert self._item is not None
        place: dict[str, Any] = {"item_id": self._item["id"], "output_index": len(self.done)}
        return place | {"content_index": 0} if content else place


def _message(id_: str) -> dict[str, Any]:
    return {"type": "message", "id": id_, "role": "assistant", "content": [], "status": "in_progress"}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
