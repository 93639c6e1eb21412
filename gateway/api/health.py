"""Liveness and readiness."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from gateway.api.answers import fault
from gateway.fleet.registry import Registry
from gateway.proxy.forwarder import Forwarder


def health_routes(registry: Registry, forwarder: Forwarder) -> APIRouter:
    """Whether this gateway lives, and whether it can serve."""
    router = APIRouter()

    @router.head("/liveness", include_in_schema=False)  # some balancers only want the status
    @router.get("/liveness")
    async def liveness() -> dict[str, str]:
        return {"status": "alive"}

    @router.head("/health", include_in_schema=False)
    @router.head("/readiness", include_in_schema=False)
    @router.get("/health")
    @router.get("/readiness")
    async def readiness() -> Response:
        if forwarder.draining:
            return fault(503, "The gateway is shutting down.")
        ready = sum(len(workers) for workers in registry.snapshot.ready.values())
        if not ready:
            return fault(503, "No worker is ready.", retry_after_s=1)
        return JSONResponse({"status": "ready", "ready_workers": ready})

    return router
