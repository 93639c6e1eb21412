"""The raw ASGI callable in front of the FastAPI app: what one worker answers never enters FastAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.proxy.asgi import AsgiDownstream, BodyTooLarge, ClientGone, Receive, Scope, Send, read_body
from gateway.proxy.endpoints import head_of, inbound_of, is_proxied, refusal, request_id_of, too_large
from gateway.proxy.forwarder import Forwarder
from gateway.routing.extract import BodyFault

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class ProxyEndpoints:
    """Proxies the endpoints that one worker answers; hands everything else to `app`."""

    def __init__(self, app: Asgi, forwarder: Forwarder, *, max_body_bytes: int) -> None:
        self._app = app
        self._forwarder = forwarder
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_proxied(scope["method"], scope["path"]):
            await self._proxy(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _proxy(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        head = head_of(scope["method"], scope["path"], scope["query_string"], headers)
        request_id = request_id_of(head)
        try:
            body = await read_body(headers, receive, self._max_body_bytes)
            inbound = inbound_of(head, body, request_id)
        except BodyTooLarge:
            refused = 413, too_large(self._max_body_bytes)
        except BodyFault as fault:
            refused = 400, str(fault)
        except ClientGone:
            return
        else:
            downstream = AsgiDownstream()
            exchange = self._forwarder.make_exchange(self._forwarder, inbound, downstream)
            await downstream.run(exchange, receive, send)
            return
        self._forwarder.refused(scope["path"], refused[0])
        await refuse(send, *refused, request_id, path=scope["path"])


async def refuse(
    send: Send, status: int, message: str, request_id: bytes, code: str | None = None, path: str = ""
) -> None:
    """Answer with an error."""
    headers, body = refusal(status, message, request_id, code, path)
    headers.append((b"content-length", str(len(body)).encode()))
    if status == 413:
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
