"""Liveness, readiness, and the metrics of this gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.api.answers import fault
from gateway.fleet.registry import Registry
from gateway.proxy.forwarder import Forwarder

# Prometheus text of everything that /metrics tells.
Render = Callable[[], Awaitable[bytes]]


def health_routes(registry: Registry, render: Render, forwarder: Forwarder) -> APIRouter:
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
        return Response(await render(), media_type=CONTENT_TYPE_LATEST)

    return router
