"""GET /openapi.json: what a replica answers, as an OpenAPI document made from the bodies it checks requests by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import Request, Response
from pydantic.json_schema import models_json_schema

from common.errors import ANTHROPIC_PATH, anthropic_error_body, error_body
from worker.server.anthropic_schemas import CountTokensBody, MessagesBody
from worker.server.embedding_schemas import EmbeddingsBody, EncodeBody
from worker.server.fields import Body
from worker.server.http import JsonAnswer
from worker.server.profiles import StartProfileBody
from worker.server.responses_schemas import ResponsesBody
from worker.server.schemas import (
    AbortBody,
    ChatRequest,
    CompletionRequest,
    DetokenizeBody,
    GenerateBody,
    PauseBody,
    TokenizeBody,
)
from worker.server.service import Service
from worker.server.weights import UpdateWeightsBody

_BODIES: Mapping[str, type[Body]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/v1/embeddings": EmbeddingsBody,
    "/encode": EncodeBody,
    "/generate": GenerateBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/abort_request": AbortBody,
    "/pause_generation": PauseBody,
    "/update_weights_from_disk": UpdateWeightsBody,
    "/start_profile": StartProfileBody,
}
_BODY_MAY_LACK = frozenset({"/pause_generation", "/start_profile"})
_COMMANDS: Mapping[str, str] = {
    "/flush_cache": "Empty the prefix cache.",
    "/continue_generation": "End a pause.",
    "/stop_profile": "Write what was recorded.",
}
_STREAMED = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"})
_FACTS = ("/v1/models", "/model_info", "/server_info", "/v1/loads", "/health")
_FAULTS: Mapping[int, str] = {
    400: "The request is wrong; the message says where.",
    401: "The key is missing or wrong.",
    404: "There is no such model.",
    405: "Another method is meant.",
    413: "The body is too large.",
    429: "Too many requests of this key.",
    503: "Not now: it starts, ends, or its queue is full.",
}
_FAULTS_OF_ONE: Mapping[str, Mapping[int, str]] = {
    "/update_weights_from_disk": {409: "Not now: others are being loaded, or requests are half way."},
}
_REFERENCE = "#/components/schemas/{model}"


async def document(service: Service, _: Request) -> Response:
    """The document; no model needs to be loaded for it."""
    return JsonAnswer(_document())


@cache
def _document() -> dict[str, Any]:
    pairs: Sequence[tuple[type[Body], Any]] = [(body, "validation") for body in dict.fromkeys(_BODIES.values())]
    _, schemas = models_json_schema(pairs, ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Canopy replica", "version": "1"},
        "paths": {path: {"post": _post(path, body)} for path, body in _BODIES.items()}
        | {path: {"post": _command(path, summary)} for path, summary in _COMMANDS.items()}
        | {path: {"get": {"operationId": path, "responses": _answers(path)}} for path in _FACTS},
        "components": {"schemas": schemas["$defs"]},
    }


def _post(path: str, body: type[Body]) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(model=body.__name__)}
    return {
        "operationId": path,
        "summary": (body.__doc__ or "").splitlines()[0],
        "requestBody": {
            "required": path not in _BODY_MAY_LACK,
            "content": {"application/json": {"schema": schema}},
        },
        "responses": _answers(path),
    }


def _command(path: str, summary: str) -> dict[str, Any]:
    return {"operationId": path, "summary": summary, "responses": _answers(path)}


def _answers(path: str) -> dict[str, Any]:
    """200, and the faults with examples in the shape of the path's API."""
    kinds: dict[str, Any] = {"application/json": {}}
    if path in _STREAMED:
        kinds["text/event-stream"] = {}
    answers: dict[str, Any] = {"200": {"description": "The answer.", "content": kinds}}
    for status, meaning in {**_FAULTS, **_FAULTS_OF_ONE.get(path, {})}.items():
        anthropic = path.startswith(ANTHROPIC_PATH)
        example = anthropic_error_body(status, meaning) if anthropic else error_body(status, meaning)
        answers[str(status)] = {"description": meaning, "content": {"application/json": {"example": example}}}
    return answers
