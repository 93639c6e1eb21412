"""The FastAPI application behind the generation endpoints."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from common.errors import HttpFault
from gateway.api.answers import fault
from gateway.api.explain import explain_routes
from gateway.api.fleet_wide import FanOut, fan_out_routes, model_routes
from gateway.api.health import health_routes
from gateway.api.profiles import profile_routes
from gateway.api.prometheus import Render, prometheus_routes
from gateway.api.weights import weight_routes
from gateway.api.workers import http_fault, older_worker_routes, worker_routes
from gateway.fleet.control import WorkerControl
from gateway.fleet.registry import Registry
from gateway.proxy.aborts import Aborts
from gateway.proxy.fetch import Fetcher
from gateway.proxy.forwarder import Forwarder


def make_app(
    registry: Registry,
    render_metrics: Render,
    forwarder: Forwarder,
    fetcher: Fetcher,
    control: WorkerControl,
    *,
    aliases: Mapping[str, str],
    policy_name: str,
    max_body_bytes: int,
) -> FastAPI:
    """Everything but what is proxied to one worker."""
    app = FastAPI(title="Canopy gateway", version="0.1.0")
    app.include_router(health_routes(registry, forwarder))
    app.include_router(prometheus_routes(registry, render_metrics, fetcher))
    app.include_router(worker_routes(registry, control))
    app.include_router(older_worker_routes(registry, control))
    app.include_router(model_routes(registry, aliases))
    explaining = explain_routes(
        registry, forwarder.router, policy_name, aliases, max_body_bytes=max_body_bytes, preparer=forwarder.preparer
    )
    app.include_router(explaining)
    fan_out = FanOut(registry, fetcher)
    app.include_router(fan_out_routes(control, fan_out, Aborts(forwarder), max_body_bytes=max_body_bytes))
    app.include_router(profile_routes(fan_out, max_body_bytes=max_body_bytes))
    app.include_router(weight_routes(control, fan_out, aliases, max_body_bytes=max_body_bytes))
    app.add_exception_handler(HttpFault, _fault)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    return app


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1]) if len(first["loc"]) > 1 else None
    return fault(400, f"{first['msg']}.", param=param)


async def _fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpFault)
    return http_fault(error)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"There is no {request.method} {request.url.path} here." if error.status_code == 404 else error.detail
    return fault(error.status_code, message)
