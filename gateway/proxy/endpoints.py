"""The endpoints that one worker answers, the same for both data paths: ids, what routing reads, refusals."""

from __future__ import annotations

import itertools
import os
import secrets
from urllib.parse import parse_qs

import orjson

from common.errors import error_body_at
from gateway.proxy.http1 import REQUEST_ID_HEADER, Headers, RequestHead, forwarded_lines
from gateway.proxy.inbound import Inbound
from gateway.routing.extract import extract, extract_model
from gateway.routing.keys import routing_headers
from gateway.routing.policy import RouteRequest

GENERATE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"})
# A cached prefix is worth little to short texts that nobody goes on with, so these are routed by load alone.
_EMBED_PATHS = frozenset({"/v1/embeddings", "/encode"})
HOT_PATHS = GENERATE_PATHS | _EMBED_PATHS
_TOOL_PATHS = {
    "/v1/messages/count_tokens": "POST",
    "/tokenize": "POST",
    "/v1/tokenize": "POST",
    "/detokenize": "POST",
    "/v1/detokenize": "POST",
    "/model_info": "GET",
    "/get_model_info": "GET",
    "/server_info": "GET",
    "/get_server_info": "GET",
}
_MAX_ID_BYTES = 128


class _Ids:
    """New request ids: the beginning is this process's, the rest counts."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """From now on another beginning: a process that was forked calls this."""
        self._start = secrets.token_hex(4).encode()
        self._numbers = itertools.count(secrets.randbits(32))

    def __next__(self) -> bytes:
        return self._start + str(10**7 + next(self._numbers) % (9 * 10**7)).encode()


_IDS = _Ids()
os.register_at_fork(after_in_child=_IDS.begin)


def is_proxied(method: str, path: str) -> bool:
    """Whether one worker answers this."""
    return (method == "POST" and path in HOT_PATHS) or _TOOL_PATHS.get(path) == method


def head_of(method: str, path: str, query: bytes, headers: Headers) -> RequestHead:
    """Read a request's head. A client's x-request-id counts if it is short and plain."""
    given_id = b""
    for name, value in headers:
        if name == REQUEST_ID_HEADER and len(value) <= _MAX_ID_BYTES and value.isascii():
            given_id = value
            break
    target = path.encode() + b"?" + query if query else path.encode()
    key, worker = routing_headers(headers)
    return RequestHead(method, path, target, query, headers, forwarded_lines(headers), given_id, key, worker)


def request_id_of(head: RequestHead) -> bytes:
    """The client's id for the request, else a new one."""
    return head.given_id or next(_IDS)


def inbound_of(head: RequestHead, body: bytes, request_id: bytes) -> Inbound:
    """Make a whole request. Raises BodyFault."""
    if head.path in GENERATE_PATHS:
        route = extract(body, head.routing_key, head.routing_target)
    elif head.method == "POST":
        route = extract_model(body, head.routing_key, head.routing_target)
    else:
        route = RouteRequest(model=parse_qs(head.query.decode("latin-1")).get("model", [None])[0])
    return Inbound(head.path, head, body, request_id, route)


def too_large(max_bytes: int) -> str:
    """The sentence of a 413."""
    return f"The request body is larger than {max_bytes} bytes."


def refusal(
    status: int, message: str, request_id: bytes, code: str | None = None, path: str = ""
) -> tuple[Headers, bytes]:
    """Headers and body of an error that the gateway answers by itself to a request for `path`."""
    headers: Headers = [(b"content-type", b"application/json"), (REQUEST_ID_HEADER, request_id)]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, orjson.dumps(error_body_at(path, status, message, code=code))
