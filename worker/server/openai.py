"""POST /v1/completions and /v1/chat/completions: from OpenAI's bodies to sequences, and whole answers back."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    asks = [
        ask
        for i, input_ids in enumerate(await encode(serving, body.prompt, "prompt"))
        for ask in _asks(body, input_ids, sampling, "prompt" if single else f"prompt[{i}]")
    ]
    if len(asks) > MAX_PROMPTS:
        raise RequestFault(400, f"{len(body.prompt)} prompts with n={body.n} make more than {MAX_PROMPTS}.", param="n")
    header = _header(service, body, "cmpl-", "text_completion")
    generation = _start(serving, body, asks, header)
    texts = CompletionTexts(serving.tokenizer.tokenizer, generation.answers, _echoes(serving, body, generation.answers))
    if body.stream:
        chunks = CompletionChunks(header, generation.answers, body.n or 1, _usage_wanted(service, body), texts)
        return await stream_reply(request, generation, chunks)
    await whole_reply(request, generation)
    choices = [{"index": answer.index, **texts.read(answer), **finish_fields(answer)} for answer in generation.answers]
    return _whole(service, header, choices, generation.answers, body)


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
    return _whole(service, header, choices, chat.generation.answers, body)


def _choice(reader: ChatReader, tokenizer: TextCodec) -> dict[str, Any]:
    answer, chunk = reader.answer, reader.read().chunk
    return {
        "index": answer.index,
        "message": chat_message(reader),
        "logprobs": chat_choice_logprobs(answer, chat_scored(answer, chunk), tokenizer),
        **chat_finish_fields(reader),
    }


def _asks(body: OpenAIFields, input_ids: list[int], sampling: SamplingParams, param: str) -> list[Ask]:
    length_param = "max_tokens" if body.max_tokens is not None else None
    return [Ask(input_ids, one, param, length_param=length_param) for one in copies(sampling, body.n or 1)]


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
        given = body.prompt[answer.index // (body.n or 1)]
        cut = serving.limits.auto_truncate and answer.prompt_tokens >= serving.ready.max_req_input_len
        if isinstance(given, str) and not cut:
            echoes.append(given)
        else:
            echoes.append(serving.tokenizer.tokenizer.decode(answer.request.input_ids))
    return echoes


def _whole(
    service: Service, header: Header, choices: list[dict[str, Any]], answers: Sequence[Answer], body: OpenAIFields
) -> Response:
    counts = usage(answers, body.n or 1, service.settings.enable_cache_report)
    return JsonAnswer(header.fields(choices) | {"usage": counts})
