"""POST /v1/embeddings and SGLang's /encode: texts or token ids in, one vector each out."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request, Response

from worker.engine.batch import Float32s
from worker.server.embedding_schemas import EmbeddingsBody, EncodeBody
from worker.server.http import JsonAnswer, read_body
from worker.server.native_batch import NativeBatch
from worker.server.openai_chunks import usage
from worker.server.prompts import encode, new_id, start
from worker.server.replies import whole_reply
from worker.server.service import Service
from worker.server.vectors import as_base64, asks_for, check_dimensions, native_objects, unit_vectors


class VectorAnswer(JsonAnswer):
    """A JSON body with float32 arrays in it, written with as many digits as they have."""

    def render(self, content: object) -> bytes:
        """Bytes of anything orjson takes, and of arrays."""
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


async def embeddings(service: Service, request: Request) -> Response:
    """OpenAI's list of embeddings, in the order of the inputs."""
    serving = service.admit()
    body = await read_body(request, EmbeddingsBody, service.settings.max_body_bytes)
    service.check_model(body.model)
    service.check_embeds()
    check_dimensions(body.dimensions, serving.ready)
    inputs = await encode(serving, body.input, "input")
    generation = start(
        serving,
        asks_for(inputs, "input", single=len(inputs) == 1),
        group_id=body.rid or new_id("embd-"),
        priority=body.priority,
        extra_key=body.extra_key or body.cache_salt,
        stream=False,
    )
    await whole_reply(request, generation)
    vectors = unit_vectors(generation.answers, body.dimensions)
    return VectorAnswer(
        {
            "object": "list",
            "model": service.settings.model_name,
            "data": [_item(i, vector, body.encoding_format) for i, vector in enumerate(vectors)],
            "usage": usage(generation.answers, 1, service.settings.enable_cache_report),
        }
    )


async def encode_native(service: Service, request: Request) -> Response:
    """SGLang's objects of embedding and meta_info; a list if the request holds a list."""
    serving = service.admit()
    body = await read_body(request, EncodeBody, service.settings.max_body_bytes)
    service.check_embeds()
    check_dimensions(body.dimensions, serving.ready)
    batch = NativeBatch.of(body)
    generation = start(
        serving,
        asks_for(await encode(serving, batch.prompts, batch.param), batch.param, single=batch.single),
        group_id=body.rid if isinstance(body.rid, str) else new_id(""),
        rids=batch.rids(body, 1),
        priority=body.priority,
        extra_key=body.extra_key or body.cache_salt,
        stream=False,
    )
    await whole_reply(request, generation)
    objects = native_objects(generation.answers, body.dimensions, service.now_s())
    return VectorAnswer(objects[0] if batch.single else objects)


def _item(index: int, vector: Float32s, encoding_format: str | None) -> dict[str, Any]:
    embedding = as_base64(vector) if encoding_format == "base64" else vector
    return {"object": "embedding", "index": index, "embedding": embedding}
