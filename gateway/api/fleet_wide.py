"""Endpoints that speak for all workers at once: the union of models, the loads, cache flushes and aborts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gateway.api.answers import fault
from gateway.api.bodies import body_of, decoded
from gateway.fleet.control import WorkerControl
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import NO_LIFE, LoadReport, WorkerView
from gateway.proxy.aborts import Aborts
from gateway.proxy.fetch import Fetcher, FetchError
from gateway.proxy.http1 import Headers

NO_ANSWER = 502
_TIMEOUT_S = 5.0
_PASSED_ON = frozenset({b"authorization", b"content-type"})


class _Error(msgspec.Struct, frozen=True):
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one worker answered to a fan-out; status NO_ANSWER if it did not."""

    worker: WorkerView
    status: int
    text: str

    def as_json(self) -> dict[str, Any]:
        return {"worker": self.worker.name, "url": self.worker.url, "status": self.status, "message": self.text}

    def why(self) -> str:
        """The sentence in an error body of OpenAI's shape; all of the text where there is none."""
        try:
            return msgspec.json.decode(self.text, type=_ErrorBody).error.message
        except msgspec.MsgspecError:
            return self.text


class FanOut:
    """Asks every worker that may be alive the same thing."""

    def __init__(self, registry: Registry, fetcher: Fetcher) -> None:
        self._registry = registry
        self._fetcher = fetcher

    def workers(self) -> list[WorkerView]:
        """Those that may be alive now."""
        return [worker for worker in self._registry.snapshot.workers if worker.life != NO_LIFE]

    async def post(self, path: str, headers: Headers, body: bytes) -> list[Outcome]:
        """POST to all at once; each gets five seconds."""
        return await self.post_to(self.workers(), path, headers, body)

    async def post_to(
        self,
        workers: Sequence[WorkerView],
        path: str,
        headers: Headers,
        body: bytes,
        timeout_s: float = _TIMEOUT_S,
    ) -> list[Outcome]:
        """POST to these at once."""
        headers = [item for item in headers if item[0] in _PASSED_ON]
        return list(await asyncio.gather(*(self._ask(worker, path, headers, body, timeout_s) for worker in workers)))

    async def _ask(self, worker: WorkerView, path: str, headers: Headers, body: bytes, timeout_s: float) -> Outcome:
        try:
            answer = await self._fetcher.fetch(
                worker.url, path, timeout_s=timeout_s, method="POST", headers=headers, body=body
            )
        except FetchError as error:
            return Outcome(worker, NO_ANSWER, str(error))
        return Outcome(worker, answer.status, answer.body.decode(errors="replace").strip())


def model_routes(registry: Registry, aliases: Mapping[str, str]) -> APIRouter:
    """Models and loads, from what the workers last told."""
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        known, cards = registry.snapshot.models, registry.snapshot.cards
        names = known | {name for name, model in aliases.items() if model in known}
        return {"object": "list", "data": [model_card(name, aliases.get(name), cards) for name in sorted(names)]}

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        if aliases.get(model, model) not in registry.snapshot.models:
            return fault(404, f"The model {model!r} does not exist.", param="model", code="model_not_found")
        return JSONResponse(model_card(model, aliases.get(model), registry.snapshot.cards))

    @router.get("/v1/loads")
    async def loads() -> dict[str, Any]:
        return loads_of(registry.snapshot)

    @router.get("/get_load")
    async def get_load() -> list[dict[str, Any]]:
        return [sglang_load(rank) for rank in loads_of(registry.snapshot)["loads"]]

    @router.get("/get_loads")
    async def get_loads() -> dict[str, Any]:
        loads = [{"worker": worker.url, "load": worker.load.requests} for worker in registry.snapshot.workers]
        return {"workers": loads}

    return router


class Abort(msgspec.Struct, frozen=True):
    """The body of /abort_request."""

    rid: str | None = None
    abort_all: bool | None = None


def fan_out_routes(control: WorkerControl, fan_out: FanOut, aborts: Aborts, *, max_body_bytes: int) -> APIRouter:
    """What every worker is asked to do."""
    router = APIRouter()

    @router.get("/flush_cache", include_in_schema=False)
    @router.post("/flush_cache")
    async def flush_cache(request: Request) -> Response:
        outcomes = await fan_out.post("/flush_cache", request.headers.raw, b"")
        for outcome in outcomes:
            if outcome.status == 200:
                control.flushed(outcome.worker.url)
        return summary(outcomes)

    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = await body_of(request, max_body_bytes)
        asked = decoded(body, Abort)
        if asked.rid is None and not asked.abort_all:
            return fault(400, "Give the rid of the request to abort, or abort_all: true.", param="rid")
        meant = aborts.all() if asked.rid is None or asked.abort_all else aborts.find(asked.rid)
        told = {"known": len(meant), "ended_here": aborts.end_waiting(meant)}
        headers = request.headers.raw
        if asked.abort_all or not meant:  # somebody else's, perhaps
            outcomes = await fan_out.post("/abort_request", headers, body)
        else:
            outcomes = await fan_out.post_to(aborts.holders(meant), "/abort_request", headers, body)
            if not outcomes:
                return JSONResponse({"results": [], **told})
        return summary(outcomes, told)

    @router.post("/pause_generation")
    @router.post("/continue_generation")
    async def pause(request: Request) -> Response:
        body = await body_of(request, max_body_bytes)
        path: str = request.scope["route"].path
        return summary(await fan_out.post(path, request.headers.raw, body))

    return router


def summary(outcomes: list[Outcome], told: Mapping[str, Any] = MappingProxyType({})) -> Response:
    """200 if every worker did it; else the worst of their answers, with all of them in the body, and `told`."""
    if not outcomes:
        return fault(503, "There is no worker to ask.", retry_after_s=1, extra=dict(told))
    worst = max(outcomes, key=lambda outcome: outcome.status)
    body = {"results": [outcome.as_json() for outcome in outcomes], **told}
    if worst.status < 400:
        return JSONResponse(body)
    return fault(worst.status, f"Worker {worst.worker.name}: {worst.why()}", extra=body)


def model_card(name: str, root: str | None, cards: Mapping[str, Mapping[str, str | int]]) -> dict[str, Any]:
    """OpenAI's model object; `root`: the model that the name is an alias of, if it is one; `cards`: what workers told
    of models by name."""
    model = root or name
    card = {"id": name, "object": "model", "created": 0, "owned_by": "canopy", "root": model}
    return card | dict(cards.get(model, {}))


def sglang_load(rank: dict[str, Any]) -> dict[str, int]:
    """One entry of /v1/loads as SGLang's /get_load has it."""
    waiting = rank["num_waiting_reqs"]
    return {
        "dp_rank": rank["dp_rank"],
        "num_reqs": rank["num_running_reqs"] + waiting,
        "num_waiting_reqs": waiting,
        "num_tokens": rank["num_used_tokens"],
    }


def loads_of(snapshot: Snapshot) -> dict[str, Any]:
    """The last load report of each worker in the shape of /v1/loads, `dp_rank` being its place in the list."""
    loads = []
    for rank, worker in enumerate(snapshot.workers):
        report = worker.load.report or LoadReport()
        loads.append(
            {
                "dp_rank": rank,
                "worker": worker.name,
                "url": worker.url,
                "num_running_reqs": report.running_requests,
                "num_waiting_reqs": report.waiting_requests,
                "num_waiting_tokens": report.waiting_tokens,
                "num_used_tokens": report.used_tokens,
                "max_total_num_tokens": report.max_total_tokens or worker.identity.max_total_tokens,
                "token_usage": report.token_usage,
                "gen_throughput": report.gen_throughput,
                "cache_hit_rate": report.cache_hit_rate,
                "max_running_requests": worker.identity.max_running_requests,
            }
        )
    return {"timestamp": time.time(), "loads": loads}
