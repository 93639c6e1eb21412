"""POST /update_weights_from_disk: other weights of the same model, under load."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import AfterValidator, Field

from worker.ipc.messages import CallReply, UpdateWeights
from worker.server.errors import RequestFault
from worker.server.fields import Body
from worker.server.http import JsonAnswer, read_body
from worker.server.service import Service

MAX_PATH_CHARS = 4096
MAX_VERSION_CHARS = 256
MAX_DRAIN_S = 86_400.0


def _flushes(value: bool | None) -> bool | None:
    if value is False:
        raise ValueError("must be true: what the prefix cache holds was computed by the old weights")
    return value


class UpdateWeightsBody(Body):
    """POST /update_weights_from_disk: which weights, and what becomes of requests that have begun.

    `keep_pause` false ends a pause of generation with the update; else it lasts.
    """

    model_path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
    load_format: Literal["auto", "safetensors", "gguf"] | None = None
    weight_version: Annotated[str, Field(min_length=1, max_length=MAX_VERSION_CHARS)] | None = None
    abort_all_requests: bool | None = None
    drain_timeout_s: Annotated[float, Field(ge=0, le=MAX_DRAIN_S)] | None = None
    flush_cache: Annotated[bool | None, AfterValidator(_flushes)] = None
    keep_pause: bool | None = None

    def check_format(self) -> None:
        """Raises RequestFault (400) if `load_format` does not fit `model_path`."""
        is_gguf = self.model_path.lower().endswith(".gguf")
        if self.load_format == ("safetensors" if is_gguf else "gguf"):
            kind = "is" if is_gguf else "is no"
            text = f"load_format {self.load_format} does not fit: {self.model_path} {kind} .gguf file."
            raise RequestFault(400, text, param="load_format")


async def update_weights(service: Service, request: Request) -> Response:
    """Answers when the new weights are in use, in SGLang's shape; a failure has that and OpenAI's error object, and
    changes nothing."""
    service.admit()
    body = await read_body(request, UpdateWeightsBody, service.settings.max_body_bytes)
    body.check_format()
    answer = await service.scheduler.update_weights(
        UpdateWeights(
            model_path=body.model_path,
            weight_version=body.weight_version,
            abort_all=bool(body.abort_all_requests),
            drain_timeout_s=body.drain_timeout_s,
        )
    )
    if isinstance(answer, CallReply):
        fault = RequestFault(answer.status, answer.message, param=answer.param)
        return _answer(success=False, message=fault.message, num_paused=0, status=fault.status, extra=fault.body())
    if body.keep_pause is False:
        await service.scheduler.go_on()
    message = f"The weights are those in {answer.model_path}, version {service.weights.version}."
    return _answer(success=True, message=message, num_paused=answer.num_held_back)


def _answer(
    *, success: bool, message: str, num_paused: int, status: int = 200, extra: dict[str, object] | None = None
) -> Response:
    content = {"success": success, "message": message, "num_paused_requests": num_paused, **(extra or {})}
    return JsonAnswer(content, status_code=status)
