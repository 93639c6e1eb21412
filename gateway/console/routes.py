"""GET /console: the page, its files, its events. The page is for everybody; the events need a key if there is one."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from gateway.api.answers import fault
from gateway.console.hub import MAX_SUBSCRIBERS, Full, Hub

EVENTS = "/console/events"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def console_routes(hub: Hub) -> APIRouter:
    """The page at /console, its files below it, and the stream of events."""
    router = APIRouter()
    assets = read_assets()

    @router.get("/console", include_in_schema=False)
    async def page(request: Request) -> Response:
        return assets["index.html"].answer(request)

    @router.get(EVENTS, include_in_schema=False)
    async def events() -> Response:
        try:
            stream = hub.subscribe()
        except Full:
            text = f"{MAX_SUBSCRIBERS} consoles look at this gateway already; close one."
            return fault(503, text, code="too_many_consoles", retry_after_s=5)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @router.get("/console/{name}", include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        found = assets.get(name)
        return found.answer(request) if found is not None else fault(404, f"There is no GET /console/{name} here.")

    return router


class Asset:
    """One file of the page, kept in memory."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self.content = content
        self._headers = _HEADERS | {"etag": f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'}
        self._media_type = media_type

    def answer(self, request: Request) -> Response:
        """200 with the file, or 304 if the browser has it."""
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self.content, media_type=self._media_type, headers=self._headers)


def read_assets() -> dict[str, Asset]:
    """The files of the page by name."""
    folder: Any = files("gateway.console") / "static"
    return {path.name: Asset(path.read_bytes(), _TYPES[path.name.rpartition(".")[2]]) for path in folder.iterdir()}
