"""Decides whether the accelerated data path may be used: it leans on uvicorn's insides, so they are tried first."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from common.clock import Clock
from gateway.admission.keys import Keyring
from gateway.proxy.bounded_protocol import HttpBounds
from gateway.proxy.forwarder import Forwarder
from gateway.proxy.hot_protocol import HotProtocol
from gateway.proxy.known_heads import KnownHeads

_LOG = logging.getLogger("gateway")
_KNOWN_UVICORN = "0.54."
_REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: check\r\n%bcontent-length: 3\r\n\r\n[1]"
_REQUEST_IDS = (b"x-request-id: check-1\r\n", b"x-request-id: check-2\r\n", b"", b"")  # the last one's head is known


def accelerate(
    forwarder: Forwarder,
    *,
    max_body_bytes: int,
    bounds: HttpBounds | None = None,
    keyring: Keyring | None = None,
    browsers: bool = False,
) -> type[HotProtocol] | None:
    """The protocol class for uvicorn, or None with a log line if this uvicorn is not as expected. Needs a loop."""
    attributes = {
        "forwarder": forwarder,
        "known_heads": KnownHeads(),
        "max_body_bytes": max_body_bytes,
        "outbox": forwarder.pools.outbox,
        "bounds": bounds or HttpBounds(),
        "on_refusal": staticmethod(forwarder.refused),
        "keyring": keyring,
        "browsers": browsers,
    }
    protocol: type[HotProtocol] = type("BoundHotProtocol", (HotProtocol,), attributes)
    if not uvicorn.__version__.startswith(_KNOWN_UVICORN):
        _LOG.warning("the fast path knows uvicorn %sx, not %s: it is off", _KNOWN_UVICORN, uvicorn.__version__)
        return None
    try:
        checked = {"forwarder": _Uncounted(forwarder.clock), "keyring": None}
        fault = self_check(type("CheckedHotProtocol", (protocol,), checked))
    except Exception as error:
        fault = repr(error)
    if fault:
        _LOG.warning("the fast path failed its self-check (%s): it is off", fault)
        return None
    return protocol


def self_check(protocol_class: type[HotProtocol]) -> str:
    """Bad requests on one connection must get 400s; a foreign path must go uvicorn's way. "" if so."""
    passed_on: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed_on.append(scope["path"])

    config = uvicorn.Config(app, http=protocol_class, log_config=None, lifespan="off", ws="none", loop="none")
    config.load()
    state = ServerState()
    protocol = protocol_class(config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop())
    transport = _Transport()
    protocol.connection_made(transport)
    for request_id in _REQUEST_IDS:
        protocol.data_received(_REQUEST % request_id)
        protocol.outbox.flush()
        answer = transport.take()
        if not answer.startswith(b"HTTP/1.1 400 ") or request_id not in answer or b"must be a JSON obj" not in answer:
            return f"a bad request was answered {answer[:80]!r}"
    protocol.data_received(b"GET /elsewhere HTTP/1.1\r\nhost: check\r\n\r\n")
    tasks = list(state.tasks)
    protocol.connection_lost(None)
    for task in tasks:
        task.cancel()
    if len(tasks) != 1 or state.total_requests != len(_REQUEST_IDS):
        return f"{len(tasks)} requests reached the ASGI callable, {state.total_requests} were counted"
    return ""


class _Uncounted:
    """As much of a forwarder as the self-check needs. Its requests are nobody's: they must not be in the metrics."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def refused(self, endpoint: str, status: int) -> None:
        pass


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        self._written += data

    def take(self) -> bytes:
        """What was written since the last call."""
        written = bytes(self._written)
        self._written.clear()
        return written

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
