"""Bodies in, events out, and noticing at once that a client has left. Built on ASGI's three callables."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.logs import REQUEST_ID as LOGGED_ID
from worker.server.errors import RequestFault, from_validation

B = TypeVar("B", bound=BaseModel)

RETRY_AFTER_S = 1  # what a 503 tells clients
REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[\x21-\x7e]{1,256}")
_JSON = re.compile(r"application/([\w.+-]+\+)?json\b", re.IGNORECASE)

_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    503: {"retry-after": str(RETRY_AFTER_S)},
}

DONE = b"data: [DONE]\n\n"


async def read_body(request: Request, model: type[B], max_bytes: int, *, empty: B | None = None) -> B:
    """The request's body as a `model`; `empty` stands for an empty body. Raises RequestFault: 413, or 400."""
    content_type = request.headers.get("content-type")
    if content_type is not None and not _JSON.match(content_type):
        raise RequestFault(400, f"The body must be JSON, with content-type application/json, not {content_type[:100]}.")
    raw = await _read_bytes(request, max_bytes)
    if empty is not None and not raw.strip():
        return empty
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error) from None


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    fault = RequestFault(413, f"The body is larger than {max_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise fault
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise fault
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestFault(400, "The client left before its body was complete.") from None
    return b"".join(chunks)


class JsonAnswer(Response):
    """A JSON body."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Bytes of anything orjson takes."""
        return orjson.dumps(content)


def event(content: object) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


def named_event(name: str, content: Mapping[str, object]) -> bytes:
    """One server-sent event with a name, which its data repeat as `type`."""
    return b"event: " + name.encode() + b"\n" + event({"type": name, **content})


class DisconnectWatch:
    """Calls `on_leave` as soon as the client has left. Start it when the body has been read; `close` ends it."""

    def __init__(self, request: Request, on_leave: Callable[[], None]) -> None:
        self._task = asyncio.create_task(self._watch(request.receive, on_leave))

    async def _watch(self, receive: Receive, on_leave: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_leave()

    def close(self) -> None:
        """Stop watching. ASGI servers report a disconnect after a normal end too, so close it before the last byte."""
        self._task.cancel()


class EventStream(Response):
    """Sends events as they come, one write each; `close` is called however it ends."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"}, "text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()


class RequestIds:
    """ASGI middleware: takes the client's x-request-id or makes one, for the answer and for what is logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _USABLE_ID.fullmatch(given) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        token = LOGGED_ID.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            LOGGED_ID.reset(token)


def answer(fault: RequestFault, path: str) -> Response:
    """The HTTP answer to a fault of a request to `path`."""
    return JsonAnswer(fault.body(path), fault.status, _HEADERS.get(fault.status))


def install_error_answers(app: FastAPI) -> None:
    """Make `app` answer every fault, its own and the framework's, in the shape of the path's API."""

    @app.exception_handler(RequestFault)
    async def fault(request: Request, error: RequestFault) -> Response:
        return answer(error, request.url.path)

    @app.exception_handler(HTTPException)
    async def framework_fault(request: Request, error: HTTPException) -> Response:
        text = {
            404: f"There is no {request.url.path} here.",
            405: f"{request.url.path} does not take {request.method}.",
        }.get(error.status_code, str(error.detail))
        return answer(RequestFault(error.status_code, text), request.url.path)

    @app.exception_handler(Exception)
    async def crash(request: Request, _: Exception) -> Response:  # the HTTP server logs the traceback
        return answer(RequestFault(500, "The server failed at this request; its log says why."), request.url.path)
