"""How each kind of server is spoken to: the path, a request's body, and what its answers and stream events say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import orjson

from benchmarks.serve.outcomes import Outcome
from benchmarks.serve.prompts import Prompt

_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
_NO_USAGE = "The answer has no usage, so its tokens cannot be counted."


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `output_tokens`: how long the answer is to be, None = as the server likes. `fields` go into the body
    as they are; `session` is sent as x-session-id, by which gateways keep a conversation on one replica."""

    prompt: Prompt
    output_tokens: int | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What all requests of a run have in common. `extra` is merged into every body and wins."""

    model: str
    stream: bool
    ignore_eos: bool
    temperature: float = 0.0
    top_p: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Api(Protocol):
    """One API. Reading never raises for what a server may send, except ValueError, KeyError and TypeError."""

    path: str
    generates: bool
    """Whether answers are made of tokens, one after the other."""

    def body(self, ask: Ask, wishes: Wishes) -> dict[str, Any]:
        """The request's body; numpy arrays stay what they are."""
        ...

    def event(self, data: bytes, outcome: Outcome) -> bool:
        """Take in one stream event. Returns whether it brings tokens."""
        ...

    def whole(self, data: bytes, outcome: Outcome) -> None:
        """Take in an answer that was not streamed."""
        ...

    def ended(self, outcome: Outcome, last: bytes) -> None:
        """Take in what is left to know when a stream is over; `last` is its last event that brought tokens."""
        ...


class Native:
    """SGLang's /generate. Events are cumulative, so only the last one is read as a whole."""

    path = "/generate"
    generates = True

    def body(self, ask: Ask, wishes: Wishes) -> dict[str, Any]:
        sampling: dict[str, Any] = {"temperature": wishes.temperature, "top_p": wishes.top_p}
        if ask.output_tokens is not None:
            sampling |= {"max_new_tokens": ask.output_tokens, "ignore_eos": wishes.ignore_eos}
        extra = dict(wishes.extra)
        sampling |= extra.pop("sampling_params", {})
        key = "text" if isinstance(ask.prompt, str) else "input_ids"
        fields = {key: ask.prompt, "sampling_params": sampling, "stream": wishes.stream, "model": wishes.model}
        return fields | dict(ask.fields) | extra

    def event(self, data: bytes, outcome: Outcome) -> bool:
        found = _COMPLETION_TOKENS.search(data)
        if found is None:
            outcome.error = _error_of(orjson.loads(data)) or f"An event without counts: {data[:200]!r}"
            return False
        count, before = int(found.group(1)), outcome.output_tokens
        outcome.output_tokens = count
        return count > before

    def whole(self, data: bytes, outcome: Outcome) -> None:
        fields = orjson.loads(data)
        outcome.error = _error_of(fields)
        if outcome.error:
            return
        meta = fields["meta_info"]
        outcome.output_tokens = int(meta["completion_tokens"])
        outcome.input_tokens = int(meta.get("prompt_tokens") or outcome.input_tokens)
        outcome.cached_tokens = int(meta.get("cached_tokens") or 0)
        outcome.retractions = int(meta.get("num_retractions") or 0)
        outcome.text = fields.get("text") or ""
        outcome.output_ids = fields.get("output_ids") or []

    def ended(self, outcome: Outcome, last: bytes) -> None:
        if last:
            self.whole(last, outcome)


class OpenAi:
    """OpenAI's completions, or its chats. A stream event that brings no text brings no token, except that a server
    without a tokenizer sends completions without text."""

    generates = True

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self.path = "/v1/chat/completions" if chat else "/v1/completions"

    def body(self, ask: Ask, wishes: Wishes) -> dict[str, Any]:
        key = "messages" if self._chat else "prompt"
        fields: dict[str, Any] = {"model": wishes.model, key: ask.prompt, "stream": wishes.stream}
        fields |= {"temperature": wishes.temperature, "top_p": wishes.top_p}
        if ask.output_tokens is not None:
            fields["max_completion_tokens" if self._chat else "max_tokens"] = ask.output_tokens
            if wishes.ignore_eos:
                fields["ignore_eos"] = True
        if wishes.stream:
            fields["stream_options"] = {"include_usage": True}
        return fields | dict(ask.fields) | dict(wishes.extra)

    def event(self, data: bytes, outcome: Outcome) -> bool:
        fields = orjson.loads(data)
        if "error" in fields:
            outcome.error = _error_of(fields)
            return False
        if fields.get("usage"):
            self._count(fields["usage"], outcome)
        brought = [self._read(choice, outcome) for choice in fields.get("choices") or ()]
        return any(brought)

    def whole(self, data: bytes, outcome: Outcome) -> None:
        fields = orjson.loads(data)
        outcome.error = _error_of(fields)
        if outcome.error:
            return
        for choice in fields["choices"]:
            self._read(choice, outcome)
        self._count(fields.get("usage") or {}, outcome)
        self.ended(outcome, b"")

    def ended(self, outcome: Outcome, last: bytes) -> None:
        if not outcome.output_tokens and not outcome.error:
            outcome.error = _NO_USAGE

    def _read(self, choice: dict[str, Any], outcome: Outcome) -> bool:
        if not self._chat:
            outcome.text += choice.get("text") or ""
            return bool(choice.get("text")) or choice.get("finish_reason") is None
        part = choice.get("delta") or choice.get("message") or {}
        outcome.text += part.get("content") or ""
        return bool(
            part.get("content") or part.get("reasoning_content") or part.get("reasoning") or part.get("tool_calls")
        )

    def _count(self, usage: dict[str, Any], outcome: Outcome) -> None:
        outcome.output_tokens = int(usage.get("completion_tokens") or 0)
        outcome.input_tokens = int(usage.get("prompt_tokens") or outcome.input_tokens)
        outcome.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


class Embeddings:
    """OpenAI's embeddings: one input a request, answered at once. Only prompts have tokens."""

    path = "/v1/embeddings"
    generates = False

    def body(self, ask: Ask, wishes: Wishes) -> dict[str, Any]:
        return {"model": wishes.model, "input": ask.prompt} | dict(ask.fields) | dict(wishes.extra)

    def event(self, data: bytes, outcome: Outcome) -> bool:
        raise ValueError("embeddings are not streamed")

    def whole(self, data: bytes, outcome: Outcome) -> None:
        found = _VECTORS.decode(data)
        outcome.error = _error_of({"error": found.error})
        if outcome.error:
            return
        if not found.data or any(bytes(vector.embedding) in _EMPTY for vector in found.data):
            outcome.error = "The answer has no embedding."
        outcome.input_tokens = found.usage.prompt_tokens or outcome.input_tokens
        details = found.usage.prompt_tokens_details
        outcome.cached_tokens = details.cached_tokens if details else 0

    def ended(self, outcome: Outcome, last: bytes) -> None:
        raise ValueError("embeddings are not streamed")


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw


class _Vectors(msgspec.Struct):
    """An answer with embeddings, whose numbers stay unread."""

    data: list[_Vector] = []
    usage: _Usage = msgspec.field(default_factory=_Usage)
    error: Any = None


_VECTORS = msgspec.json.Decoder(_Vectors)
_EMPTY = (b"[]", b'""', b"null")
_NATIVE, _COMPLETIONS, _CHAT, _EMBEDDINGS = Native(), OpenAi(chat=False), OpenAi(chat=True), Embeddings()

BACKENDS: Mapping[str, Api] = {
    **dict.fromkeys(("canopy", "sglang", "sglang-native"), _NATIVE),
    **dict.fromkeys(("canopy-oai", "sglang-oai", "vllm", "lmdeploy", "openai"), _COMPLETIONS),
    **dict.fromkeys(("canopy-chat", "sglang-oai-chat", "vllm-chat", "lmdeploy-chat", "openai-chat"), _CHAT),
    **dict.fromkeys(("canopy-embeddings", "sglang-embedding", "openai-embeddings"), _EMBEDDINGS),
}


def is_chat(backend: str) -> bool:
    """Whether a backend takes messages."""
    return BACKENDS[backend] is _CHAT


def is_native(backend: str) -> bool:
    """Whether a backend answers with token ids."""
    return BACKENDS[backend] is _NATIVE


def generates(backend: str) -> bool:
    """Whether a backend answers with text, not with embeddings."""
    return BACKENDS[backend].generates


def _error_of(fields: Any) -> str:
    """The server's error; "" if there is none."""
    error = fields.get("error") if isinstance(fields, dict) else f"not an object: {fields!r}"
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:200] if error else ""
