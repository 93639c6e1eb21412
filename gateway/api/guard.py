"""Keys for the endpoints behind ASGI: which path asks for what, decided before a body is read."""

from __future__ import annotations

from gateway.admission.keys import Access, Keyring
from gateway.api.proxied import Asgi, refuse
from gateway.proxy.asgi import Receive, Scope, Send
from gateway.proxy.forwarder import Forwarder
from gateway.proxy.http1 import REQUEST_ID_HEADER

_ACCESS = {
    "/liveness": Access.OPEN,
    "/readiness": Access.OPEN,
    "/health": Access.OPEN,
    "/metrics": Access.OPEN,
    "/console": Access.OPEN,
    "/console/events": Access.KNOWN,
    "/engine_metrics": Access.ADMIN,
    "/prometheus/targets": Access.ADMIN,
    "/tuning": Access.ADMIN,
    "/flush_cache": Access.ADMIN,
    "/abort_request": Access.ADMIN,
    "/pause_generation": Access.ADMIN,
    "/continue_generation": Access.ADMIN,
    "/update_weights_from_disk": Access.ADMIN,
    "/start_profile": Access.ADMIN,
    "/stop_profile": Access.ADMIN,
    "/route/explain": Access.ADMIN,
    "/add_worker": Access.ADMIN,
    "/remove_worker": Access.ADMIN,
    "/list_workers": Access.ADMIN,
}


def access_of(path: str) -> Access:
    """What a path asks of its caller."""
    if path == "/workers" or path.startswith("/workers/"):
        return Access.ADMIN
    page_file = path.startswith("/console/")
    return _ACCESS.get(path, Access.OPEN if page_file else Access.CLIENT)


class AccessGuard:
    """Lets callers through to `app` who may call what they call."""

    def __init__(self, app: Asgi, keyring: Keyring, forwarder: Forwarder) -> None:
        self._app = app
        self._keyring = keyring
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fault = self._keyring.fault(access_of(scope["path"]), scope["headers"])
        if fault is None:
            await self._app(scope, receive, send)
            return
        self._forwarder.refused("unauthorised", fault.status)
        request_id = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), b"-")
        await refuse(send, fault.status, fault.message, request_id, fault.code)
