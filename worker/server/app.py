"""The replica's HTTP surface: which path and method leads to which handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from worker.server import anthropic, control, embeddings, native, openai, openapi, profiles, responses, weights
from worker.server.auth import Access, Keys
from worker.server.http import RequestIds, install_error_answers
from worker.server.service import Service
from worker.server.tracing import TraceRequests

Handler = Callable[[Service, Request], Awaitable[Response]]

_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/completions", openai.completions),
    ("POST", "/v1/chat/completions", openai.chat_completions),
    ("POST", "/v1/messages", anthropic.messages),
    ("POST", "/v1/messages/count_tokens", anthropic.count_tokens),
    ("POST", "/v1/responses", responses.create),
    ("GET DELETE", "/v1/responses/{name:path}", responses.stored),
    ("POST", "/v1/responses/{name:path}", responses.stored),
    ("POST", "/v1/embeddings", embeddings.embeddings),
    ("POST PUT", "/encode", embeddings.encode_native),
    ("POST PUT", "/generate", native.generate),
    ("GET", "/openapi.json", openapi.document),
    ("GET", "/v1/models", control.models),
    ("GET", "/v1/models/{name:path}", control.model),
    ("GET", "/health", control.health),
    ("GET", "/health_generate", control.health_generate),
    ("GET", "/model_info", control.model_info),
    ("GET", "/get_model_info", control.model_info),
    ("GET", "/server_info", control.server_info),
    ("GET", "/get_server_info", control.server_info),
    ("GET", "/v1/loads", control.loads),
    ("GET", "/v1/hot_prefixes", control.hot_prefixes),
    ("GET POST", "/flush_cache", control.flush_cache),
    ("POST", "/abort_request", control.abort_request),
    ("POST", "/pause_generation", control.pause_generation),
    ("POST", "/continue_generation", control.continue_generation),
    ("POST", "/update_weights_from_disk", weights.update_weights),
    ("POST", "/start_profile", profiles.start_profile),
    ("POST", "/stop_profile", profiles.stop_profile),
    ("POST", "/tokenize", control.tokenize),
    ("POST", "/v1/tokenize", control.tokenize),
    ("POST", "/detokenize", control.detokenize),
    ("POST", "/v1/detokenize", control.detokenize),
)


_METRICS = ("GET", "/metrics", control.metrics)
_ACCESS = {  # all others are for clients
    "/health": Access.OPEN,
    "/health_generate": Access.OPEN,
    "/metrics": Access.OPEN,
    "/v1/hot_prefixes": Access.ADMIN,
    "/flush_cache": Access.ADMIN,
    "/abort_request": Access.ADMIN,
    "/pause_generation": Access.ADMIN,
    "/continue_generation": Access.ADMIN,
    "/update_weights_from_disk": Access.ADMIN,
    "/start_profile": Access.ADMIN,
    "/stop_profile": Access.ADMIN,
}
# What only a model that generates text can do.
_GENERATES = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/generate"})


def create_app(service: Service) -> ASGIApp:
    """The ASGI application of one replica."""
    settings = service.settings
    keys = Keys(settings.api_key, settings.admin_api_key)
    app = FastAPI(title="Canopy replica", openapi_url=None)
    install_error_answers(app)
    for methods, path, handler in (*_ROUTES, _METRICS) if settings.enable_metrics else _ROUTES:
        app.add_api_route(path, _bound(service, handler, path, keys), methods=methods.split(), name=path)
    traces = service.traces
    return RequestIds(app if traces is None else TraceRequests(app, traces, settings.trace_sample_ratio))


def _bound(service: Service, handler: Handler, path: str, keys: Keys) -> Callable[[Request], Awaitable[Response]]:
    access = _ACCESS.get(path, Access.CLIENT)

    async def route(request: Request) -> Response:
        headers = request.headers
        keys.check(access, headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}")
        if path in _GENERATES:
            service.check_generates()
        return await handler(service, request)

    return route
