"""Request bodies that are nearly right: good ones with fields changed, lost, nested, or with bytes broken."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

HI = [{"role": "user", "content": "hi"}]
FUNCTION: dict[str, Any] = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "default",
        "messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, *HI],
        "max_tokens": 4,
        "temperature": 0.5,
        "n": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["x"],
        "logit_bias": {"5": 1.0},
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"a": 1},
        "seed": 7,
    },
    "/v1/completions": {
        "prompt": ["hi", "ho"],
        "max_tokens": 4,
        "echo": True,
        "logprobs": 2,
        "n": 1,
        "top_p": 0.9,
        "stop_token_ids": [5],
        "min_tokens": 1,
        "presence_penalty": 0.5,
    },
    "/generate": {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 4, "top_k": 5, "stop_regex": ["x+y"]},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
    },
    "/v1/messages": {
        "max_tokens": 4,
        "system": "Be brief.",
        "messages": [
            *HI,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["x"],
    },
    "/v1/messages/count_tokens": {"messages": HI, "system": [{"type": "text", "text": "x"}]},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
        ],
        "instructions": "Be brief.",
        "max_output_tokens": 4,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "none",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
    },
    "/tokenize": {"prompt": "hi", "add_special_tokens": True},
    "/detokenize": {"tokens": [5, 6], "skip_special_tokens": False},
    "/abort_request": {"rid": "no such request", "abort_all": False},
}
EMBEDDING: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {
        "model": "default",
        "input": ["hi", "ho"],
        "encoding_format": "base64",
        "dimensions": 3,
        "user": "u",
        "priority": 1,
        "cache_salt": "s",
    },
    "/encode": {"input_ids": [[5, 6], [7]], "rid": ["a", "b"], "dimensions": 4},
}
_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 5, 2**31, -(2**63), 10**30, 0.5, float("nan"), float("-inf")),
    *("", "x", "\x00", "\ud800", "漢" * 50, "(", "{", "}" * 9, "x" * 3000, [], {}, [None], [[]], [{}], {"": None}),
    *({"type": "text"}, {"type": []}, {"role": "user"}, [1, "a"], ["a"] * 20, [5] * 700, {"a": {"b": {"c": [1]}}}),
]


def mutated(path: str, seed: int, count: int) -> Iterator[bytes]:
    """`count` bodies for an endpoint, the same for the same seed."""
    rng = random.Random(f"{path} {seed}")
    for _ in range(count):
        body: Any = json.loads(json.dumps((GOOD | EMBEDDING)[path]))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            body = _mutate(body, rng)
        if isinstance(body, dict) and rng.random() < 0.2:
            body["stream"] = True
        raw = json.dumps(body).encode()
        yield _broken(raw, rng) if rng.random() < 0.1 else raw


def _mutate(value: Any, rng: random.Random) -> Any:
    """The value with one place in it changed."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(_ODD)
    changed = value.copy()
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    match rng.randrange(5):
        case 0:
            del changed[key]
        case 1:
            changed[key] = rng.choice(_ODD)
        case 2 if isinstance(changed, list):
            changed.append(rng.choice(_ODD))
        case 2:
            changed[rng.choice(("x", "", "n", "stop", "regex", "input_ids", str(key) * 2))] = rng.choice(_ODD)
        case _:
            changed[key] = _mutate(value[key], rng)
    return changed


def _broken(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return rng.choice((raw[:at], raw[:at] + bytes([rng.randrange(256)]) + raw[at:], raw[:at] + raw[at + 1 :]))


_INTERNAL = (
    "Traceback",
    'File "',
    "site-packages",
    ".py",
    "pydantic",
    "msgspec",
    "worker.",
    " at 0x",
    "Exception",
    "Error(",
)


_SERVER_FAULTS = ("server_error", "api_error")


def judge(status: int, text: str) -> str | None:
    """What is wrong with an answer; None: nothing. An error, also one that ends a stream, says one sentence and nothing
    of our inside, and is not the server's."""
    if not (status == 200 or 400 <= status < 500):
        return f"status {status}: {text[:300]}"
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    for told in events if status == 200 else [json.loads(text)]:
        error = told if told.get("type") == "error" and "code" in told else told.get("response", told).get("error")
        if error is None:
            continue
        if error.get("type") in _SERVER_FAULTS or str(error.get("code")).startswith("5"):
            return f"a stream ends with {error}"
        shown = next((word for word in _INTERNAL if word in error["message"]), None)
        if shown is not None:
            return f"the message tells {shown!r}: {error['message'][:300]}"
    return None
