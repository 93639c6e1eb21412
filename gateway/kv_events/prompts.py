"""What a generation request's prompt is, as far as its token ids can be worked out here: a chat, a text, or ids.

The rules are those by which workers make token ids of requests (worker/server/prompts.py for ours). Whatever cannot be
foretold is Unforeseeable, with the reason: routing then falls back to comparing texts.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

MAX_TEXT_CHARS = 2**21  # of a prompt that is turned into tokens here
_CHANGES_THE_PROMPT = (
    *("tools", "functions", "documents", "response_format", "audio", "lora_path"),
    *("system", "instructions", "input", "add_generation_prompt"),
)


class Unforeseeable(Exception):
    """The prompt's token ids cannot be worked out here. The argument is the metric's label."""


class Ids(msgspec.Struct, frozen=True):
    """Token ids as the client gave them, as int32 bytes."""

    packed: bytes


class Text(msgspec.Struct, frozen=True):
    """A text that is encoded as it is, with the tokenizer's special tokens around it."""

    text: str


class Chat(msgspec.Struct, frozen=True):
    """Messages for the chat template, and the variables it gets beside."""

    messages: list[dict[str, Any]]
    continue_final_message: bool
    variables: dict[str, Any]


Prompt = Ids | Text | Chat


def read_prompt(body: bytes) -> tuple[Prompt, str | None]:
    """(prompt, extra key of its cached prefix). Raises Unforeseeable."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Unforeseeable("malformed") from None
    if not isinstance(fields, dict):
        raise Unforeseeable("malformed")
    if any(fields.get(name) for name in _CHANGES_THE_PROMPT):
        raise Unforeseeable("unsupported")
    extra_key = fields.get("extra_key") or fields.get("cache_salt")
    if "messages" in fields:
        prompt: Prompt = _chat(fields)
    else:
        prompt = _one(next((fields[name] for name in ("prompt", "text", "input_ids") if fields.get(name)), None))
    return prompt, extra_key if isinstance(extra_key, str) else None


def _one(prompt: Any) -> Ids | Text:
    """A prompt as text or ids. Of a batch each prompt hits by itself, so it is none of ours unless it has one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if len(prompt) > MAX_TEXT_CHARS:
            raise Unforeseeable("too_long")
        return Text(prompt)
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        try:
            return Ids(array("i", prompt).tobytes())
        except (TypeError, OverflowError):
            raise Unforeseeable("malformed") from None
    raise Unforeseeable("batch" if isinstance(prompt, list) else "malformed")


def _chat(fields: Mapping[str, Any]) -> Chat:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unforeseeable("malformed")
    variables = dict(fields.get("chat_template_kwargs") or {})
    if fields.get("reasoning_effort") is not None:
        variables["reasoning_effort"] = fields["reasoning_effort"]
    chat = Chat([_message(message) for message in messages], bool(fields.get("continue_final_message")), variables)
    if sum(len(message["content"]) for message in chat.messages) > MAX_TEXT_CHARS:
        raise Unforeseeable("too_long")
    return chat


def _message(message: Any) -> dict[str, Any]:
    """As chat templates get it: content is a text, and developer is another word for system."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unforeseeable("malformed")
    if any(message.get(name) for name in ("tool_calls", "function_call", "tool_call_id", "reasoning_content")):
        raise Unforeseeable("unsupported")
    role = "system" if message["role"] == "developer" else message["role"]
    plain = {"role": role, "content": _content(message.get("content"))}
    return plain if message.get("name") is None else plain | {"name": message["name"]}


def _content(content: Any) -> str:
    """The text of a message; of parts, all joined. What is not text is seen by the worker only."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Unforeseeable("malformed")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Unforeseeable("unsupported")
        texts.append(part["text"])
    return "".join(texts)
