"""Whether a streamed request can be continued by another worker, and the request that asks it to.

The prompt is replayed with the text so far behind it. That equals an answer that was not interrupted only if sampling
looks at nothing but the text (no penalties, grammars, seeds, tools, log-probabilities), so only fields known to be
harmless are let through.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_LIMITS = ("max_tokens", "max_completion_tokens")

_ANY_VALUE = frozenset(
    {
        *_LIMITS,
        "cache_salt",
        "chat_template_kwargs",
        "continue_final_message",
        "extra_key",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "messages",
        "metadata",
        "min_p",
        "model",
        "no_stop_trim",
        "priority",
        "prompt",
        "rid",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
_ONLY: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
}
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")


class Continuation(msgspec.Struct, frozen=True):
    """The parts of one request that its continuations are made of."""

    endpoint: str
    fields: dict[str, Any]
    begun: str  # text of the final message that the client itself wants continued; chat only

    @property
    def chat(self) -> bool:
        return self.endpoint == CHAT

    @property
    def model(self) -> Any:
        return self.fields.get("model")

    @property
    def wants_usage(self) -> bool:
        """The client asked for usage, which comes in an event of its own."""
        return bool((self.fields.get("stream_options") or {}).get("include_usage"))

    @property
    def max_tokens(self) -> int | None:
        """The smallest limit the client gave."""
        given = [self.fields[name] for name in _LIMITS if type(self.fields.get(name)) is int]
        return min(given, default=None)

    def after(self, text: str, tokens: int) -> bytes:
        """The request that goes on behind `text`, of which `tokens` tokens count against the limits."""
        fields = dict(self.fields)
        for name in _LIMITS:
            if type(fields.get(name)) is int:
                fields[name] -= tokens
        if not self.chat:
            fields["prompt"] = _text_of(fields["prompt"]) + text
        elif text or self.begun:
            messages = fields["messages"][:-1] if self.begun else fields["messages"]
            fields["messages"] = [*messages, {"role": "assistant", "content": self.begun + text}]
            fields["continue_final_message"], fields["add_generation_prompt"] = True, False
        return orjson.dumps(fields)


def continuation_of(endpoint: str, body: bytes) -> Continuation | None:
    """What can be continued; None: this request cannot."""
    if endpoint not in (COMPLETIONS, CHAT):
        return None
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or fields.get("stream") is not True or not all(map(_harmless, *_items(fields))):
        return None
    if fields.get("seed") is not None and fields.get("temperature") != 0:
        return None
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or any(value for name, value in options.items() if name != "include_usage"):
        return None
    begun = _begun(fields) if endpoint == CHAT else ""
    if begun is None or (endpoint == COMPLETIONS and _text_of(fields.get("prompt")) is None):
        return None
    return Continuation(endpoint, fields, begun)


def _items(fields: dict[str, Any]) -> tuple[list[str], list[Any]]:
    return list(fields), list(fields.values())


def _harmless(name: str, value: Any) -> bool:
    return name in _ANY_VALUE or name == "seed" or value in _NOTHING or value in _ONLY.get(name, ())


def _begun(fields: dict[str, Any]) -> str | None:
    """The text of a final message that is to be continued; "" if there is none; None if it is no plain text."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return None
    if not fields.get("continue_final_message"):
        return ""
    content = messages[-1].get("content")
    plain = messages[-1].get("role") == "assistant" and set(messages[-1]) <= {"role", "content"}
    return content if plain and isinstance(content, str) and content else None


def _text_of(prompt: Any) -> Any:
    """The text of a prompt that is one text, else None."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) and prompt else None
