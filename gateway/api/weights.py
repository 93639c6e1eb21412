"""POST /update_weights_from_disk: new weights for every worker of a model at once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from gateway.api.answers import fault
from gateway.api.bodies import body_of, decoded
from gateway.api.fleet_wide import NO_ANSWER, FanOut, Outcome, summary
from gateway.fleet.control import WorkerControl

MAX_DRAIN_S = 86_400.0  # more is refused by the workers
TIMEOUT_S = 3600.0  # the weights are read, and what has begun ends first; its own time limit comes on top


class _Update(msgspec.Struct, frozen=True):
    """What the gateway reads of the body; all of it goes on to the workers. `model`: whose workers, by its name."""

    model_path: str
    model: str | None = None
    drain_timeout_s: float | None = None


class _Told(msgspec.Struct, frozen=True):
    """What it reads of a worker's answer."""

    num_paused_requests: int = 0


def weight_routes(
    control: WorkerControl, fan_out: FanOut, aliases: Mapping[str, str], *, max_body_bytes: int
) -> APIRouter:
    """The workers do it each for itself; where one has done it, nothing is cached any more."""
    router = APIRouter()

    @router.post("/update_weights_from_disk")
    async def update_weights(request: Request) -> Response:
        body = await body_of(request, max_body_bytes)
        asked = decoded(body, _Update)
        workers = fan_out.workers()
        models = {worker.model for worker in workers if worker.model}
        if asked.model is None and len(models) > 1:
            text = f"Say by model whose weights these are; there are several models: {', '.join(sorted(models))}."
            return fault(400, text, param="model")
        if asked.model is not None:
            model = aliases.get(asked.model, asked.model)
            workers = [worker for worker in workers if worker.model == model]
            if models and not workers:
                return fault(404, f"The model {asked.model!r} does not exist.", param="model", code="model_not_found")
        headers, timeout_s = request.headers.raw, TIMEOUT_S + min(asked.drain_timeout_s or 0, MAX_DRAIN_S)
        control.weights_change(begins=True)
        try:
            outcomes = await fan_out.post_to(workers, "/update_weights_from_disk", headers, body, timeout_s=timeout_s)
            _note(outcomes, control)
        finally:
            control.weights_change(begins=False)
        return summary(outcomes, _told(outcomes))

    return router


def _note(outcomes: list[Outcome], control: WorkerControl) -> None:
    """Who has the new weights. One that did not answer may have them too, or take them on later."""
    name = uuid.uuid4().hex  # trainers may well write to one path again and again
    for outcome in outcomes:
        if outcome.status == 200:
            control.flushed(outcome.worker.url, weights=name)
        elif outcome.status == NO_ANSWER:
            control.flushed(outcome.worker.url, weights=f"{name}, perhaps, at {outcome.worker.url}")


def _told(outcomes: list[Outcome]) -> dict[str, Any]:
    """What SGLang's clients read, of all workers together."""
    done = sum(outcome.status == 200 for outcome in outcomes)
    return {
        "success": done == len(outcomes) > 0,
        "message": f"{done} of {len(outcomes)} workers have the new weights.",
        "num_paused_requests": sum(_num_paused(outcome.text) for outcome in outcomes),
    }


def _num_paused(text: str) -> int:
    try:
        return msgspec.json.decode(text, type=_Told).num_paused_requests
    except msgspec.MsgspecError:
        return 0
