"""POST /v1/completions and /v1/chat/completions: from OpenAI's bodies to sequences, and whole answers back."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from fastapi import Request, Response

from worker.sampling_params import SamplingParams
from worker.server.answers import Answer
from worker.server.chat import ChatReader, begin
from worker.server.errors import RequestFault
from worker.server.fields import MAX_PROMPTS
from worker.server.http import JsonAnswer, read_body
from worker.server.openai_chunks import (
    ChatChunks,
    CompletionChunks,
    CompletionTexts,
    Header,
    UsageWanted,
    chat_choice_logprobs,
    chat_finish_fields,
    chat_message,
    chat_scored,
    chat_usage,
    finish_fields,
    usage,
)
from worker.server.prompts import Ask, encode, new_id, start
from worker.server.replies import stream_reply, whole_reply
from worker.server.sampling import copies
from worker.server.schemas import ChatRequest, CompletionRequest, OpenAIFields, StreamOptions
from worker.server.service import Service, Serving
from worker.server.streams import Generation
from worker.server.tokenizer import TextCodec


async def completions(service: Service, request: Request) -> Response:
    """Answer a completion request; its choices are the n answers of the first prompt, then of the second, ..."""
    serving = service.admit()
    body = await read_body(request, CompletionRequest, service.settings.max_body_bytes)
    service.check_model(body.model)
    sampling = serving.rules.for_completion(body)
    single = len(body.prompt) == 1
    made = body.num_made
    asks = [
        ask
        for i, input_ids in enumerate(await encode(serving, body.prompt, "prompt"))
        for ask in _asks(body, input_ids, copies(sampling, made), "prompt" if single else f"prompt[{i}]")
    ]
    if len(asks) > MAX_PROMPTS:
        param = "best_of" if made > body.num_kept else "n"
        text = f"{len(body.prompt)} prompts with {param}={made} make more than {MAX_PROMPTS}."
        raise RequestFault(400, text, param=param)
    header = _header(service, body, "cmpl-", "text_completion")
    generation = _start(serving, body, asks, header)
    answers = generation.answers
    echoes = _echoes(serving, body, answers)
    texts = CompletionTexts(serving.tokenizer.tokenizer, answers, echoes, scored=body.logprobs is not None)
    if body.stream:
        chunks = CompletionChunks(header, answers, made, _usage_wanted(service, body), texts)
        return await stream_reply(request, generation, chunks)
    await whole_reply(request, generation)
    kept = answers if made == body.num_kept else _best(answers, body.num_kept, made)
    choices = [{"index": i, **texts.read(answer), **finish_fields(answer)} for i, answer in enumerate(kept)]
    return JsonAnswer(header.fields(choices) | {"usage": usage(answers, made, service.settings.enable_cache_report)})


async def chat_completions(service: Service, request: Request) -> Response:
    """Answer a chat request with n choices."""
    serving = service.admit()
    body = await read_body(request, ChatRequest, service.settings.max_body_bytes)
    service.check_model(body.model)
    header = _header(service, body, "chatcmpl-", "chat.completion")
    chat = await begin(serving, body, header.id)
    tokenizer = serving.tokenizer.tokenizer
    if body.stream:
        chunks = ChatChunks(header, chat, body.n or 1, _usage_wanted(service, body), tokenizer)
        return await stream_reply(request, chat.generation, chunks)
    await whole_reply(request, chat.generation)
    choices = [_choice(reader, tokenizer) for reader in chat.readers]
    count = partial(chat_usage, chat.readers, tokenizer, service.settings.enable_cache_report)
    # Long reasoning takes many ms to count.
    counts = await serving.tokenizer.run(count) if any(reader.reasoning for reader in chat.readers) else count()
    return JsonAnswer(header.fields(choices) | {"usage": counts})


def _choice(reader: ChatReader, tokenizer: TextCodec) -> dict[str, Any]:
    answer, chunk = reader.answer, reader.read().chunk
    return {
        "index": answer.index,
        "message": chat_message(reader),
        "logprobs": chat_choice_logprobs(answer, chat_scored(answer, chunk), tokenizer),
        **chat_finish_fields(reader),
    }


def _asks(body: OpenAIFields, input_ids: list[int], wanted: Sequence[SamplingParams], param: str) -> list[Ask]:
    length_param = "max_tokens" if body.max_tokens is not None else None
    return [Ask(input_ids, one, param, length_param=length_param) for one in wanted]


def _best(answers: Sequence[Answer], num_kept: int, num_made: int) -> list[Answer]:
    """Of the answers to each prompt those whose tokens are the likeliest on average, the best first, as OpenAI says."""

    def likelihood(answer: Answer) -> float:
        return fmean(score.logprob for score in answer.scores) if answer.scores else -math.inf

    groups = (answers[start : start + num_made] for start in range(0, len(answers), num_made))
    return [answer for group in groups for answer in sorted(group, key=likelihood, reverse=True)[:num_kept]]


def _start(serving: Serving, body: OpenAIFields, asks: Sequence[Ask], header: Header) -> Generation:
    return start(
        serving,
        asks,
        group_id=header.id,
        priority=body.priority,
        extra_key=body.extra_key or body.cache_salt,
        stream=bool(body.stream),
    )


def _header(service: Service, body: OpenAIFields, prefix: str, kind: str) -> Header:
    return Header(body.rid or new_id(prefix), kind, int(time.time()), service.settings.model_name)


def _usage_wanted(service: Service, body: OpenAIFields) -> UsageWanted:
    options = body.stream_options or StreamOptions()
    asked = options.include_usage
    at_end = service.settings.stream_response_default_include_usage if asked is None else asked
    return UsageWanted(at_end, bool(options.continuous_usage_stats), service.settings.enable_cache_report)


def _echoes(serving: Serving, body: CompletionRequest, answers: Sequence[Answer]) -> list[str] | None:
    """The text of each answer's prompt, if it shall be repeated: as the client wrote it, unless it had to be cut."""
    if not body.echo:
        return None
    echoes = []
    for answer in answers:
        given = body.prompt[answer.index // body.num_made]
        cut = serving.limits.auto_truncate and answer.prompt_tokens >= serving.ready.max_req_input_len
        if isinstance(given, str) and not cut:
            echoes.append(given)
        else:
            echoes.append(serving.tokenizer.tokenizer.decode(answer.request.input_ids))
    return echoes
