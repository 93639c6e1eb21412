"""The endpoints that one worker answers, the same for both data paths: ids, what routing reads, refusals."""

from __future__ import annotations

import itertools
import secrets
from urllib.parse import parse_qs

import orjson

from common.errors import error_body
from gateway.proxy.exchange import REQUEST_ID_HEADER, Inbound
from gateway.proxy.http1 import Headers
from gateway.routing.extract import extract, extract_model
from gateway.routing.policy import RouteRequest

GENERATE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/generate"})
_TOOL_PATHS = {
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/model_info": "GET",
    "/get_model_info": "GET",
    "/server_info": "GET",
    "/get_server_info": "GET",
}
_MAX_ID_BYTES = 128
_ID_START = secrets.token_hex(4).encode()  # of this process; the rest counts
_ID_NUMBERS = itertools.count(secrets.randbits(32))


def is_proxied(method: str, path: str) -> bool:
    """Whether one worker answers this."""
    return (method == "POST" and path in GENERATE_PATHS) or _TOOL_PATHS.get(path) == method


def request_id_of(headers: Headers) -> bytes:
    """The client's x-request-id if it is short and plain, else a new one."""
    for name, value in headers:
        if name == REQUEST_ID_HEADER and 0 < len(value) <= _MAX_ID_BYTES and value.isascii():
            return value
    return b"%s%08x" % (_ID_START, next(_ID_NUMBERS) & 0xFFFFFFFF)


def inbound_of(method: str, path: str, query: bytes, headers: Headers, body: bytes, request_id: bytes) -> Inbound:
    """Make a whole request. Raises BodyFault."""
    if path in GENERATE_PATHS:
        route = extract(body)
    elif method == "POST":
        route = extract_model(body)
    else:
        route = RouteRequest(model=parse_qs(query.decode("latin-1")).get("model", [None])[0])
    target = path.encode() + b"?" + query if query else path.encode()
    return Inbound(path, method, target, headers, body, request_id, route)


def too_large(max_bytes: int) -> str:
    """The sentence of a 413."""
    return f"The request body is larger than {max_bytes} bytes."


def refusal(status: int, message: str, request_id: bytes) -> tuple[Headers, bytes]:
    """Headers and body of an error that the gateway answers by itself."""
    headers: Headers = [(b"content-type", b"application/json"), (REQUEST_ID_HEADER, request_id)]
    return headers, orjson.dumps(error_body(status, message))
