"""Runs one gateway under uvicorn: binds the port, drains on a signal, leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from types import FrameType

import uvicorn
import uvloop

from common.process import listening_socket, raise_file_limit, url_of
from common.tls import tls_options
from common.tracing.otlp import check_extra
from gateway.admission.factory import make_keyring, share
from gateway.app import Gateway, build
from gateway.config import GatewaySettings
from gateway.kv_events.mode import check_tokenizer
from gateway.memory import MemoryTrimmer
from gateway.processes.parent import run_processes
from gateway.processes.siblings import Member
from gateway.proxy.accelerate import accelerate
from gateway.proxy.bounded_protocol import BoundedProtocol, HttpBounds, bounded
from gateway.proxy.hot_protocol import HotProtocol

_LOG = logging.getLogger("gateway")
_GC_ALLOCATIONS = 50_000  # between two looks at the youngest objects
_TICKS_PER_SWEEP = 10  # uvicorn ticks ten times a second
_KEEP_ALIVE_S = 75
_OTHER_FILES = 64
_FIRST_LOOK_S = 1.0
_CLOSING_S = 2  # for connections to close after the last answer


class GatewayServer(uvicorn.Server):
    """uvicorn's server with our way to stop: not ready at once, gone when idle or after the grace time."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._settled_s = self._stop_s = float("inf")  # from then on it stops when idle; then it stops
        self._trimmer = MemoryTrimmer()
        self.failed = False

    def fail(self, error: BaseException) -> None:
        """A background task broke: stop, so that whoever started us can start us anew."""
        _LOG.error("the gateway stops: a background task failed", exc_info=error)
        self.failed = self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: now."""
        if self._gateway.forwarder.draining:
            self.should_exit = True
            return
        self._gateway.forwarder.draining = True
        settings = self._gateway.settings
        self._settled_s = time.monotonic() + settings.shutdown_settle_s
        self._stop_s = self._settled_s + settings.shutdown_grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no connection before the workers have been asked once: who comes meanwhile waits for a moment, and does
        not hear that none is ready."""
        await self._gateway.health.first_look(_FIRST_LOOK_S)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if time.monotonic() >= (self._stop_s if self._gateway.forwarder.inflight else self._settled_s):
            self.should_exit = True
        if self.should_exit:
            self._gateway.forwarder.shut_down()
        if counter % _TICKS_PER_SWEEP == 0:
            self.close_idle_connections()
            self._trimmer.look(self._gateway.forwarder.inflight, time.monotonic())
        return await super().on_tick(counter)

    def close_idle_connections(self) -> None:
        """Drop clients that make us wait for a request's bytes for too long, or that have not asked anything for the
        keep-alive time, which the fast path leaves to us."""
        now_s = self._gateway.forwarder.clock.now_s()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            connection.check_time(now_s)
            if isinstance(connection, HotProtocol):
                connection.close_if_idle(now_s, self.config.timeout_keep_alive)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's, does not raise the signal again afterwards: a clean stop exits with 0."""
        previous = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in previous.items():
                signal.signal(sig, handler)


def connections_by_file_limit() -> int:
    """How many clients the process may have when each needs a file, and another one for its worker."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max((soft - _OTHER_FILES) // 2, 1) if soft != resource.RLIM_INFINITY else sys.maxsize


def uvicorn_config(gateway: Gateway) -> uvicorn.Config:
    """The HTTP server's configuration for this gateway. Needs a running loop."""
    settings = gateway.settings
    bounds = HttpBounds(
        max_connections=min(share(settings.max_connections, settings.gateway_processes), connections_by_file_limit()),
        head_timeout_s=settings.head_timeout_s,
        body_timeout_s=settings.body_timeout_s,
    )
    protocol: type[BoundedProtocol] | None = None
    if settings.fast_path:
        protocol = accelerate(
            gateway.forwarder,
            max_body_bytes=settings.max_body_bytes,
            bounds=bounds,
            keyring=gateway.keyring if gateway.keyring.guards_clients else None,
            browsers=bool(settings.cors_allowed_origins),
        )
    return uvicorn.Config(
        gateway.asgi,
        loop="none",
        http=protocol or bounded(bounds, gateway.forwarder.refused),
        **tls_options(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSING_S,
    )


async def serve(settings: GatewaySettings, sock: socket.socket, member: Member | None) -> int:
    """Serve until told to stop, as one of several processes if `member` says so. Returns the exit code: 1 if it could
    not go on."""
    gateway = build(settings, member=member)
    server = GatewayServer(uvicorn_config(gateway), gateway)
    _settle_garbage_collector()
    _LOG.info("Gateway listening on %s, policy %s", url_of(sock, tls=settings.tls), settings.policy)
    async with gateway.running(server.fail):
        await server.serve(sockets=[sock])
    return int(server.failed)


def _settle_garbage_collector() -> None:
    """What lives now lives for ever; look for cycles rarely: requests leave next to none."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS, 20, 20)


def run(settings: GatewaySettings) -> int:
    """Bind, then serve until told to stop. Returns the exit code. Raises UserError before anything runs."""
    raise_file_limit()
    if settings.gateway_processes == 1:
        with listening_socket(settings.host, settings.port, os.environ) as sock:
            return run_one(settings, sock, None)
    make_keyring(settings)  # so that bad files are told once, and not by each process
    tls_options(settings)
    check_extra(settings)
    check_tokenizer(settings)
    return run_processes(settings.host, settings.port, settings.gateway_processes, partial(run_one, settings))


def run_one(settings: GatewaySettings, sock: socket.socket, member: Member | None) -> int:
    """One gateway process, on its own event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, sock, member))
