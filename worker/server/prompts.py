"""From prompts as clients give them to sequences that the scheduler runs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from worker.ipc.messages import GenerateRequest
from worker.sampling_params import SamplingParams
from worker.server.schemas import Prompts
from worker.server.service import Serving
from worker.server.streams import Generation


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence to generate: its prompt, its parameters, and the field the prompt came from. `stream_interval`:
    tokens per stream event, if the client names it; `length_param`: the field that says how long the answer may be."""

    input_ids: list[int]
    sampling: SamplingParams
    param: str
    stream_interval: int | None = None
    length_param: str | None = None


async def encode(serving: Serving, prompts: Prompts, param: str) -> list[list[int]]:
    """Prompts as token ids; texts are encoded in a thread."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    tokenizer = serving.tokenizer.tokenizer
    tokenizer.check_text(param)
    for text in texts:
        serving.limits.check_text(tokenizer.least_tokens(text), param)
    return await serving.tokenizer.run_in_turn(lambda: [tokenizer.encode(text) for text in texts], sum(map(len, texts)))


async def encode_chat(
    serving: Serving,
    messages: Sequence[Mapping[str, Any]],
    *,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """A chat as token ids, in a thread."""
    tokenizer = serving.tokenizer.tokenizer
    tokenizer.check_text("messages")
    text = "".join(str(m["content"]) for m in messages)
    serving.limits.check_text(tokenizer.least_tokens(text), "messages")
    work = partial(
        tokenizer.encode_chat, messages, continue_final_message=continue_final_message, variables=variables or {}
    )
    return await serving.tokenizer.run_in_turn(work, len(text))


def start(
    serving: Serving,
    asks: Sequence[Ask],
    *,
    group_id: str,
    rids: Sequence[str] | None = None,
    priority: int | None = None,
    extra_key: str | None = None,
    stream: bool,
) -> Generation:
    """Check the prompts and send them to the scheduler. Raises RequestFault, then nothing was sent."""
    if rids is None:
        rids = sequence_ids(group_id, len(asks))
    serving.limits.check_priority(priority)
    requests = [
        GenerateRequest(
            rid=rid,
            input_ids=serving.limits.fit(ask.input_ids, ask.sampling, ask.param, ask.length_param),
            sampling=ask.sampling,
            priority=priority,
            extra_key=extra_key,
        )
        for rid, ask in zip(rids, asks, strict=True)
    ]
    generation = serving.streams.start(group_id, requests, stream=stream)
    for answer, ask in zip(generation.answers, asks, strict=True):
        answer.interval_tokens = ask.stream_interval
    return generation


def sequence_ids(group_id: str, count: int) -> list[str]:
    """The ids of a request's sequences, if the client gave them none."""
    return [group_id] if count == 1 else [f"{group_id}_{i}" for i in range(count)]


def new_id(prefix: str) -> str:
    """A fresh request id."""
    return prefix + uuid.uuid4().hex
