"""The gateway's own endpoints: liveness, readiness, metrics, and the registry of workers."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict

from gateway.api.answers import fault
from gateway.fleet.registry import Registry, check_url
from gateway.fleet.worker import WorkerView
from gateway.metrics import Metrics
from gateway.proxy.forwarder import Forwarder
from gateway.resilience.guard import Standing


class NewWorker(BaseModel):
    """Body of POST /workers."""

    model_config = ConfigDict(extra="forbid")
    url: str


def describe(worker: WorkerView) -> dict[str, Any]:
    """One worker as GET /workers shows it."""
    report = worker.load.report
    return {
        "url": worker.url,
        "name": worker.name,
        "state": worker.status.value,
        "message": worker.message,
        "model": worker.model,
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


def health_routes(registry: Registry, metrics: Metrics, forwarder: Forwarder) -> APIRouter:
    """Liveness, readiness, metrics."""
    router = APIRouter()

    @router.get("/liveness")
    async def liveness() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/health")
    @router.get("/readiness")
    async def readiness() -> Response:
        if forwarder.draining:
            return fault(503, "The gateway is shutting down.")
        ready = sum(len(workers) for workers in registry.snapshot.ready.values())
        if not ready:
            return fault(503, "No worker is ready.", retry_after_s=1)
        return JSONResponse({"status": "ready", "ready_workers": ready})

    @router.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def worker_routes(registry: Registry) -> APIRouter:
    """The registry of workers."""
    router = APIRouter()

    @router.get("/workers")
    async def workers() -> dict[str, Any]:
        snapshot = registry.snapshot
        return {"version": snapshot.version, "workers": [describe(worker) for worker in snapshot.workers]}

    @router.post("/workers", status_code=202)
    async def add_worker(new: NewWorker) -> Response:
        try:
            url = check_url(new.url)
        except ValueError as error:
            return fault(400, f"{error}.", param="url")
        if registry.snapshot.get(url) is not None:
            return fault(409, f"The worker {url} is already registered.", param="url")
        return JSONResponse(describe(registry.add(url, source="api")), status_code=202)

    @router.delete("/workers")
    async def remove_worker(url: Annotated[str, Query()], force: bool = False) -> Response:
        try:
            url = check_url(url)
        except ValueError as error:
            return fault(400, f"{error}.", param="url")
        worker = registry.remove(url) if force else registry.drain(url)
        if worker is None:
            return fault(404, f"There is no worker {url}.", param="url")
        return JSONResponse(describe(worker), status_code=202)

    return router
