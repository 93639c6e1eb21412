"""POST /generate, SGLang's native interface: text or ids in; text, ids and meta_info out, cumulative when streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fastapi import Request, Response

from worker.server.answers import Answer
from worker.server.http import DONE, JsonAnswer, event, read_body
from worker.server.native_batch import NativeBatch, NativeObjects
from worker.server.prompts import encode, new_id, start
from worker.server.replies import stream_reply, whole_reply
from worker.server.schemas import GenerateBody
from worker.server.service import Service


async def generate(service: Service, request: Request) -> Response:
    """Answer a native request; with a list if it holds a list of prompts, or n > 1."""
    serving = service.admit()
    body = await read_body(request, GenerateBody, service.settings.max_body_bytes)
    batch = NativeBatch.of(body)
    asks, n = batch.asks(body, await encode(serving, batch.prompts, batch.param), serving.rules)
    generation = start(
        serving,
        asks,
        group_id=body.rid if isinstance(body.rid, str) else new_id(""),
        rids=batch.rids(body, n),
        priority=body.priority,
        extra_key=body.extra_key or body.cache_salt,
        stream=bool(body.stream),
    )
    single = batch.single and n == 1
    settings = service.settings
    objects = NativeObjects(
        serving.tokenizer.tokenizer.token_bytes if body.return_text_in_logprobs else None,
        new_only=bool(body.stream) and settings.incremental_streaming_output,
        prompt_ids=bool(body.return_prompt_token_ids),
    )
    if body.stream:
        return await stream_reply(request, generation, NativeChunks(single, objects, service.now_s))
    await whole_reply(request, generation)
    contents = [objects.of(answer, service.now_s()) for answer in generation.answers]
    return JsonAnswer(contents[0] if single else contents)


class NativeChunks:
    """In each event everything so far, or with --incremental-streaming-output what is new; `index` tells the answers
    of a batch apart."""

    def __init__(self, single: bool, objects: NativeObjects, now_s: Callable[[], float]) -> None:
        self._single = single
        self._objects = objects
        self._now_s = now_s

    def news(self, answer: Answer) -> Iterator[bytes]:
        """One event."""
        content = self._objects.of(answer, self._now_s())
        yield event(content if self._single else content | {"index": answer.index})

    def end(self) -> Iterator[bytes]:
        """The closing mark."""
        yield DONE
