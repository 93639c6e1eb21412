"""Every fault a client can meet, in OpenAI's error shape: routes raise `RequestFault`, this file answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from common.errors import error_body

RETRY_AFTER_S = 1  # what a 503 tells clients


class RequestFault(Exception):
    """A request that cannot be served: HTTP status, one sentence, and the field of the body at fault, if one is."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return error_body(self.status, self.message, param=self.param, code=self.code)


def from_validation(error: ValidationError) -> RequestFault:
    """The first fault pydantic found, as 400 with the path of the field."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return RequestFault(400, f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    path = field_path(first["loc"])
    if first["type"] == "missing":
        return RequestFault(400, f"{path} is required.", param=path)
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return RequestFault(400, f"{path or 'The body'}: {message}.", param=path)


def field_path(location: Sequence[int | str]) -> str | None:
    """`("messages", 0, "content")` -> `messages[0].content`. The union branches that pydantic names are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}" if path else part
    return path or None


_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict"})


def answer(fault: RequestFault) -> Response:
    """The HTTP answer to a fault."""
    headers: Mapping[str, str] | None = {"retry-after": str(RETRY_AFTER_S)} if fault.status == 503 else None
    return Response(orjson.dumps(fault.body()), fault.status, headers, "application/json")


def install(app: FastAPI) -> None:
    """Make `app` answer every fault, its own and the framework's, in OpenAI's shape."""

    @app.exception_handler(RequestFault)
    async def fault(_: Request, error: RequestFault) -> Response:
        return answer(error)

    @app.exception_handler(HTTPException)
    async def framework_fault(request: Request, error: HTTPException) -> Response:
        text = {
            404: f"There is no {request.url.path} here.",
            405: f"{request.url.path} does not take {request.method}.",
        }.get(error.status_code, str(error.detail))
        return answer(RequestFault(error.status_code, text))

    @app.exception_handler(Exception)
    async def crash(_: Request, __: Exception) -> Response:  # the HTTP server logs the traceback
        return answer(RequestFault(500, "The server failed at this request; its log says why."))
