"""The registry of workers over HTTP, and SGLang's older names for the same."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from common.errors import HttpFault
from gateway.api.answers import fault
from gateway.api.bodies import body_of, decoded
from gateway.fleet.control import NewWorker, WorkerControl
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerView
from gateway.resilience.guard import Standing

_MAX_BODY_BYTES = 64 * 1024


def describe(worker: WorkerView) -> dict[str, Any]:
    """One worker as GET /workers shows it; its key is not shown."""
    report = worker.load.report
    return {
        "id": worker.name,
        "url": worker.url,
        "name": worker.name,
        "state": worker.status.value,
        "message": worker.message,
        "model": worker.model,
        "labels": dict(worker.labels),
        "has_api_key": worker.api_key is not None,
        "incarnation": worker.identity.incarnation,
        "source": worker.source,
        "max_total_tokens": worker.identity.max_total_tokens,
        "max_running_requests": worker.identity.max_running_requests,
        "breaker": worker.guard.breaker.state.value,
        "resting": worker.guard.standing is Standing.RESTING,
        "in_flight": worker.load.inflight,
        "pending_prefill_tokens": worker.load.pending_tokens,
        "requests_sent": worker.load.sent_total,
        "load": dataclasses.asdict(report) if report is not None else None,
    }


def worker_routes(registry: Registry, control: WorkerControl) -> APIRouter:
    """GET, POST and DELETE /workers, and drains. A worker's id is its name, or its URL percent-encoded."""
    router = APIRouter()

    @router.get("/workers")
    async def workers(model: str | None = None) -> dict[str, Any]:
        snapshot = registry.snapshot
        chosen = [worker for worker in snapshot.workers if model is None or worker.model == model]
        return {"version": snapshot.version, "workers": [describe(worker) for worker in chosen]}

    @router.post("/workers", status_code=202)
    async def add_worker(request: Request) -> Response:
        return accepted(control.add(decoded(await body_of(request, _MAX_BODY_BYTES), NewWorker)))

    @router.delete("/workers", status_code=202)
    async def remove_worker(url: Annotated[str, Query()], force: bool = False) -> Response:
        return accepted(control.remove(url) if force else control.drain(url))

    @router.post("/workers/{worker:path}/drain", status_code=202)
    async def drain(worker: str) -> Response:
        return accepted(control.drain(worker))

    @router.get("/workers/{worker:path}")
    async def one(worker: str) -> dict[str, Any]:
        return describe(control.find(worker))

    @router.delete("/workers/{worker:path}", status_code=202)
    async def remove(worker: str, force: bool = False) -> Response:
        return accepted(control.remove(worker) if force else control.drain(worker))

    return router


def older_worker_routes(registry: Registry, control: WorkerControl) -> APIRouter:
    """What older SGLang routers call it."""
    router = APIRouter()

    @router.post("/add_worker")
    async def add_worker(url: Annotated[str, Query()], api_key: str | None = None) -> Response:
        return JSONResponse(describe(control.add(NewWorker(url, api_key=api_key))))

    @router.post("/remove_worker")
    async def remove_worker(url: Annotated[str, Query()]) -> Response:
        return JSONResponse(describe(control.remove(url)))

    @router.get("/list_workers")
    async def list_workers() -> dict[str, list[str]]:
        return {"urls": [worker.url for worker in registry.snapshot.workers]}

    return router


def accepted(worker: WorkerView) -> Response:
    """202, with where to look."""
    location = f"/workers/{quote(worker.name, safe=':')}"
    return JSONResponse(describe(worker), status_code=202, headers={"location": location})


def http_fault(error: HttpFault) -> Response:
    """The answer to a fault that a route raised."""
    return fault(error.status, error.message, param=error.param, code=error.code)
