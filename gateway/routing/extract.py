"""What routing reads from a request body: model, stream, and the prompt as bytes that compare like prompts do.

Validation is the worker's work: only what is not a JSON object at all is refused here.
"""

from __future__ import annotations

import json
from array import array
from typing import Any

import orjson
from xxhash import xxh3_128_digest

from gateway.routing.policy import RouteRequest

MAX_TEXT_BYTES = 512 * 1024  # of a prompt that are matched; longer shared prefixes route like this long
_SALTS = ("cache_salt", "extra_key", "lora_path")
FIELD, RECORD = b"\x1f", b"\x1e"  # end of a role, end of a message
_PART_MARK = b"\x1d"  # before a part of a message that is not text
_MAX_PART_BYTES = 1024
_TEXT_PARTS = ("text", "input_text", "output_text")  # no set: a part's type may be anything


class BodyFault(ValueError):
    """The body is not a JSON object."""


def extract(body: bytes, key: bytes = b"", target: str = "") -> RouteRequest:
    """Read a body of a generation endpoint, OpenAI's, Anthropic's or /generate. `key` and `target` are those of the
    head, see gateway.routing.keys. Raises BodyFault."""
    fields = _fields(body)
    text, prompt_bytes, prompt_tokens, single = _prompt(fields)
    salt = _salt(fields)
    return RouteRequest(
        model=_model(fields),
        text=salt + text if salt and text else text,
        prompt_bytes=prompt_bytes,
        prompt_tokens=prompt_tokens,
        stream=fields.get("stream") is True,
        single=single,
        media=text.find(_PART_MARK) >= 0,  # `in` would raise and catch a TypeError within
        key=key,
        target=target,
    )


def extract_model(body: bytes, key: bytes = b"", target: str = "") -> RouteRequest:
    """Read a body whose prompt does not matter. Raises BodyFault."""
    return RouteRequest(model=_model(_fields(body)), key=key, target=target)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fields = _with_constants(body)
        if fields is None:
            raise BodyFault(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise BodyFault("The request body must be a JSON object.")
    return fields


def _with_constants(body: bytes) -> Any:
    """A body that is JSON but for NaN and Infinity, or None. It goes on to a worker, which names the field. Half a
    surrogate pair is no text, for whoever reads it."""
    try:
        fields = json.loads(body)
        json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return fields


def _dumped(value: Any) -> bytes:
    """Any value that was read from a body, the same for equal ones: also numbers and depths that orjson only reads."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        pass
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"..."


def _model(fields: dict[str, Any]) -> str | None:
    model = fields.get("model")
    return model if isinstance(model, str) and model else None


def _prompt(fields: dict[str, Any]) -> tuple[bytes, int, int, bool]:
    """(text, whole length in bytes, tokens if ids were given, one prompt only)."""
    messages = fields.get("messages")
    if messages is None and "input" in fields:
        messages = _items(fields["input"])
    if isinstance(messages, list):
        system = fields.get("system") or fields.get("instructions")  # they stand where a system message would
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        text = _render_chat(messages, fields.get("tools"))
        return text[:MAX_TEXT_BYTES], len(text), 0, True
    for name in ("prompt", "text", "input_ids"):
        prompt = fields.get(name)
        if prompt:
            return _render_prompt(prompt)
    return b"", 0, 0, True


def _items(given: Any) -> Any:
    """The input of /v1/responses as messages."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [_item(item) for item in given] if isinstance(given, list) else given


def _item(item: Any) -> Any:
    """A call or its output is text for the model like any other."""
    if not isinstance(item, dict) or "role" in item:
        return item
    return {"role": item.get("type"), "content": [part for key, part in item.items() if key not in ("type", "id")]}


def _render_chat(messages: list[Any], tools: Any) -> bytes:
    """Tools first, as chat templates have them; then role and content of each message."""
    parts: list[bytes] = [_dumped(tools), RECORD] if tools else []
    for message in messages:
        if not isinstance(message, dict):
            continue
        role, content = message.get("role"), message.get("content")
        parts.append(role.encode() if isinstance(role, str) else b"")
        parts.append(FIELD)
        parts.append(content.encode() if isinstance(content, str) else _render_parts(content))
        if "tool_calls" in message:
            parts += (FIELD, _dumped(message["tool_calls"]))
        parts.append(RECORD)
    return b"".join(parts)


def _render_parts(content: Any) -> bytes:
    """A content list: text as text; images and the like by their JSON, so that different ones differ."""
    if not isinstance(content, list):
        return b"" if content is None else _dumped(content)
    rendered = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXT_PARTS else None
        rendered.append(text.encode() if isinstance(text, str) else _PART_MARK + _short(_dumped(part)))
    return b"".join(rendered)


def _short(part: bytes) -> bytes:
    """An image in a request may be megabytes; its digest tells it apart as well."""
    return part if len(part) <= _MAX_PART_BYTES else xxh3_128_digest(part)


def _render_prompt(prompt: Any) -> tuple[bytes, int, int, bool]:
    """A string, token ids, or a batch of either. Of a batch the first prompt is matched, and all are counted."""
    one = _render_one(prompt)
    if one is not None:
        text, tokens = one
        return text[:MAX_TEXT_BYTES], len(text), tokens, True
    items = [item for item in map(_render_one, prompt) if item is not None] if isinstance(prompt, list) else []
    if not items:
        return b"", 0, 0, True
    whole_bytes, tokens = sum(len(text) for text, _ in items), sum(count for _, count in items)
    return items[0][0][:MAX_TEXT_BYTES], whole_bytes, tokens, len(items) == 1


def _render_one(prompt: Any) -> tuple[bytes, int] | None:
    """(text, tokens if ids were given) of a single prompt; None if it is none."""
    if isinstance(prompt, str):
        return prompt.encode(), 0
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return _pack(prompt), len(prompt)
    return None


def _pack(ids: list[Any]) -> bytes:
    """Token ids as four bytes each; nothing to match if they are not all such numbers (the worker will say so)."""
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        return b""


def _salt(fields: dict[str, Any]) -> bytes:
    """What keeps equal prompts apart in a worker's cache."""
    salts = [value for name in _SALTS if (value := fields.get(name)) is not None]
    return _dumped(salts) + RECORD if salts else b""
