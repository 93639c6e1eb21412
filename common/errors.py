"""Faults of users, and the error bodies that HTTP surfaces answer with: OpenAI's, and Anthropic's on its paths."""

from __future__ import annotations

from typing import Any


class UserError(Exception):
    """A fault the user can mend: one sentence that says what to do. Commands print it and exit with code 2."""


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def error_type(status: int) -> str:
    """OpenAI's `type` word for an HTTP status."""
    if status in _TYPES:
        return _TYPES[status]
    return "invalid_request_error" if 400 <= status < 500 else "server_error"


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's nested error object. `param` names the faulty field of the request body, if one is at fault."""
    return {
        "error": {
            "message": message,
            "type": error_type(status),
            "param": param,
            "code": code if code is not None else status,
        }
    }


ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def anthropic_error_body(status: int, message: str) -> dict[str, Any]:
    """Anthropic's error object: no field is named but in the message."""
    kind = _ANTHROPIC_TYPES.get(status, error_type(status))
    return {"type": "error", "error": {"type": "api_error" if kind == "server_error" else kind, "message": message}}


def error_body_at(
    path: str, status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The error object of the API that `path` belongs to: Anthropic's, or OpenAI's."""
    if path.startswith(ANTHROPIC_PATH):
        return anthropic_error_body(status, message)
    return error_body(status, message, param=param, code=code)


class HttpFault(ValueError):
    """A request answered with an error: HTTP status, one sentence, and the field of the body at fault, if any."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self, path: str = "") -> dict[str, Any]:
        """The error object of the API that `path` belongs to."""
        return error_body_at(path, self.status, self.message, param=self.param, code=self.code)
