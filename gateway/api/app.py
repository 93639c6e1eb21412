"""The FastAPI application behind the generation endpoints."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.api.admin import health_routes, worker_routes
from gateway.api.answers import fault
from gateway.api.explain import explain_routes
from gateway.api.fleet_wide import FanOut, fan_out_routes, model_routes
from gateway.fleet.registry import Registry
from gateway.metrics import Metrics
from gateway.proxy.fetch import Fetcher
from gateway.proxy.forwarder import Forwarder


def make_app(
    registry: Registry,
    metrics: Metrics,
    forwarder: Forwarder,
    fetcher: Fetcher,
    *,
    policy_name: str,
    max_body_bytes: int,
) -> FastAPI:
    """Everything but what is proxied to one worker."""
    app = FastAPI(title="Canopy gateway", version="0.1.0")
    app.include_router(health_routes(registry, metrics, forwarder))
    app.include_router(worker_routes(registry))
    app.include_router(model_routes(registry))
    app.include_router(explain_routes(registry, forwarder.router, policy_name, max_body_bytes=max_body_bytes))
    app.include_router(fan_out_routes(registry, FanOut(registry, fetcher), max_body_bytes=max_body_bytes))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    return app


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1]) if len(first["loc"]) > 1 else None
    return fault(400, f"{first['msg']}.", param=param)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"There is no {request.method} {request.url.path} here." if error.status_code == 404 else error.detail
    return fault(error.status_code, message)
