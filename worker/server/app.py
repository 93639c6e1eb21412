"""The replica's HTTP surface: which path and method leads to which handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from worker.server import control, native, openai
from worker.server.http import RequestIds, install_error_answers
from worker.server.service import Service

Handler = Callable[[Service, Request], Awaitable[Response]]

_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/completions", openai.completions),
    ("POST", "/v1/chat/completions", openai.chat_completions),
    ("POST PUT", "/generate", native.generate),
    ("GET", "/v1/models", control.models),
    ("GET", "/health", control.health),
    ("GET", "/health_generate", control.health_generate),
    ("GET", "/model_info", control.model_info),
    ("GET", "/get_model_info", control.model_info),
    ("GET", "/server_info", control.server_info),
    ("GET", "/get_server_info", control.server_info),
    ("GET", "/v1/loads", control.loads),
    ("GET POST", "/flush_cache", control.flush_cache),
    ("POST", "/abort_request", control.abort_request),
    ("POST", "/tokenize", control.tokenize),
    ("POST", "/v1/tokenize", control.tokenize),
    ("POST", "/detokenize", control.detokenize),
    ("POST", "/v1/detokenize", control.detokenize),
    ("GET", "/metrics", control.metrics),
)


def create_app(service: Service) -> ASGIApp:
    """The ASGI application of one replica."""
    app = FastAPI(title="Canopy replica", openapi_url=None)
    install_error_answers(app)
    for methods, path, handler in _ROUTES:
        app.add_api_route(path, _bound(service, handler), methods=methods.split(), name=path)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return await control.model(service, name)

    return RequestIds(app)


def _bound(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        return await handler(service, request)

    return route
