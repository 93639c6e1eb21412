"""Error answers of the FastAPI side, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from common.errors import error_body


def fault(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after_s: int | None = None,
    extra: dict[str, Any] | None = None,
) -> JSONResponse:
    """An answer with OpenAI's error body; `extra` stands beside `error`."""
    headers = {"retry-after": str(retry_after_s)} if retry_after_s is not None else {}
    if status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    body = error_body(status, message, param=param, code=code) | (extra or {})
    return JSONResponse(body, status_code=status, headers=headers)


def field_of(message: str) -> str | None:
    """The field that a message of msgspec speaks of."""
    quoted = message.split("`")[1::2]
    if message.startswith("Object") and quoted:
        return quoted[-1]
    return quoted[-1].removeprefix("$.") if quoted and quoted[-1].startswith("$.") else None
