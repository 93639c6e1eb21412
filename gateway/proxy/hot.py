"""The generation endpoints, the same for both data paths: request id, what routing reads, refusals."""

from __future__ import annotations

import secrets

import orjson

from common.errors import error_body
from gateway.proxy.exchange import REQUEST_ID_HEADER, Inbound
from gateway.proxy.http1 import Headers
from gateway.routing.extract import BodyFault, extract

HOT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/generate"})
_MAX_ID_BYTES = 128


def request_id_of(headers: Headers) -> bytes:
    """The client's x-request-id if it is short and plain, else a new one."""
    for name, value in headers:
        if name == REQUEST_ID_HEADER and 0 < len(value) <= _MAX_ID_BYTES and value.isascii():
            return value
    return secrets.token_hex(8).encode()


def inbound_of(path: str, query: bytes, headers: Headers, body: bytes, request_id: bytes) -> Inbound:
    """Make a whole generation request. Raises BodyFault."""
    target = path.encode() + b"?" + query if query else path.encode()
    return Inbound(path, "POST", target, headers, body, request_id, extract(body))


def too_large(max_bytes: int) -> str:
    """The sentence of a 413."""
    return f"The request body is larger than {max_bytes} bytes."


def refusal(status: int, message: str, request_id: bytes, *, code: str | None = None) -> tuple[Headers, bytes]:
    """Headers and body of an error that the gateway answers by itself."""
    headers: Headers = [(b"content-type", b"application/json"), (REQUEST_ID_HEADER, request_id)]
    return headers, orjson.dumps(error_body(status, message, code=code))


__all__ = ["HOT_PATHS", "BodyFault", "inbound_of", "refusal", "request_id_of", "too_large"]
