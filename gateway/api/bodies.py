"""Bodies of requests to the gateway's own routes: read whole within their bound, and decoded."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from fastapi import Request

from common.errors import HttpFault
from gateway.api.answers import field_of
from gateway.proxy.asgi import BodyTooLarge, ClientGone, read_body
from gateway.proxy.endpoints import too_large

T = TypeVar("T")


async def body_of(request: Request, max_bytes: int) -> bytes:
    """All of it. Raises HttpFault 413; 400, which nobody sees, if the client leaves before that."""
    try:
        return await read_body(request.headers.raw, request.receive, max_bytes)
    except BodyTooLarge:
        raise HttpFault(413, too_large(max_bytes)) from None
    except ClientGone:
        raise HttpFault(400, "The client left before its request was whole.") from None


def decoded(body: bytes, kind: type[T]) -> T:
    """JSON as a message. Raises HttpFault 400 that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise HttpFault(400, f"{error}.", param=field_of(str(error))) from None
