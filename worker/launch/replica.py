"""One replica from start to end: HTTP server, channel, scheduler process, tokenizer, and what ends them all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import uuid
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from common import logs
from common.clock import MonotonicClock
from common.errors import UserError
from common.process import LISTEN_BACKLOG, url_of
from common.tls import tls_options
from common.tracing.otlp import open_sink
from worker.config import WorkerSettings
from worker.ipc.channel import FrontendChannel
from worker.ipc.messages import CacheChanges, ModelFound, SchedulerFailed, SchedulerReady, Shutdown
from worker.kv_events.publisher import EventPublisher, LoadPublisher
from worker.launch.child import REPORTED, SchedulerProcess, how_it_ended
from worker.launch.event_streams import open_events, open_load, push_loads
from worker.launch.ready_file import write_ready_file
from worker.server.app import create_app
from worker.server.errors import RequestFault
from worker.server.lifecycle import ReplicaState
from worker.server.protocol import PlainProtocol
from worker.server.service import ModelFiles, Service

log = logging.getLogger(__name__)

_LAST_WORDS_S = 10.0  # for the last message of a scheduler that has ended
_FLUSH_S = 3  # for answers under way to leave when the replica ends
_SCHEDULER_END_S = 10.0  # for the scheduler to leave its loop
_KEEP_ALIVE_S = 75  # an idle connection stays open; longer than clients' and gateways' own limits


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the replica must end. `user_fault`: one sentence and exit code 2, else exit code 1."""

    message: str
    user_fault: bool


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling: the replica decides when to stop, and stops in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class Replica:
    """Composition of one replica. `run` is its life; make it on the running event loop, in the main thread."""

    def __init__(self, settings: WorkerSettings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._url = url_of(listener, tls=settings.ssl_certfile is not None)
        self._channel = FrontendChannel()
        incarnation = settings.incarnation or uuid.uuid4().hex
        self._traces = traces = open_sink(settings, "canopy-worker", incarnation)
        registry, clock = CollectorRegistry(), MonotonicClock()
        self._service = Service(settings, incarnation, registry, clock, self._channel.send, traces)
        self._http = HttpServer(http_config(self._service))
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[SchedulerReady] = loop.create_future()
        self._failure: asyncio.Future[Failure] = loop.create_future()
        self._background: list[asyncio.Task[None]] = []
        self._events: EventPublisher | None = None
        self._load: LoadPublisher | None = None  # without events
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Serve until told to stop (0) or something breaks (1). Raises UserError for what the user can mend."""
        async with contextlib.AsyncExitStack() as stack:  # each part is cleaned up, even if another's clean-up fails
            stack.callback(self._channel.close)
            stack.callback(self._service.close)
            stack.callback(self._close_events)
            if self._traces is not None:
                stack.push_async_callback(asyncio.to_thread, self._traces.close)
            self._install_signals()
            log.info("Loading %s; %s answers 503 until it is ready.", self._settings.model_path, self._url)
            scheduler = await SchedulerProcess.start(self._settings, self._channel.directory)
            stack.callback(self._cancel_background)
            stack.push_async_callback(self._end_scheduler, scheduler)
            http = asyncio.create_task(self._http.serve([self._listener]))
            self._background.append(http)
            self._spawn(self._receive(scheduler))
            self._spawn(self._watch(scheduler))
            await _first(self._failure, self._stop.wait(), http)
            if not self._failure.done():
                await self._drain()
            failure = self._failure.result() if self._failure.done() else None
            self._service.end(failure.message if failure is not None else None)
            self._http.should_exit = True
            await http
        return _exit_code(failure)

    async def _end_scheduler(self, scheduler: SchedulerProcess) -> None:
        """Let it leave its loop. One that is still loading would not hear of it, so it is killed."""
        self._channel.send(Shutdown())
        listens = self._service.lifecycle.was_ready and not self._stop_now.is_set()
        await scheduler.end(_SCHEDULER_END_S if listens else 0.0)

    def _cancel_background(self) -> None:
        for task in self._background:
            task.cancel()

    async def _receive(self, scheduler: SchedulerProcess) -> None:
        """Take the scheduler's messages until the end."""
        async for message in self._channel.messages():
            match message:
                case ModelFound(path=path):
                    self._spawn(self._open(path, scheduler.pid))
                case SchedulerReady():
                    self._ready.set_result(message)
                case SchedulerFailed(message=text, user_fault=user_fault):
                    self._fail(text, user_fault=user_fault)
                case CacheChanges(changes=changes):
                    assert self._events is not None, "events come after the first request"
                    self._events.publish(changes)
                case _:
                    self._service.receive(message)

    async def _open(self, path: str, scheduler_pid: int) -> None:
        """Load the tokenizer while the scheduler loads the weights; then take requests and say so."""
        files = await asyncio.to_thread(ModelFiles.load, path, self._settings)
        ready = await self._ready
        if self._service.lifecycle.state is not ReplicaState.STARTING:  # it ended while it was loading
            return
        settings = self._settings
        self._service.tokenizer_dir = "" if settings.skip_tokenizer_init else settings.tokenizer_path or path
        self._open_events(ready)
        self._service.open(ready, files)
        try:
            await self._service.scheduler.load()  # an answer: both sockets are connected
        except RequestFault:
            if self._stop.is_set() or self._failure.done():
                return  # it ended meanwhile
            raise
        self._channel.unlink()
        self._announce(ready, scheduler_pid)

    def _open_events(self, ready: SchedulerReady) -> None:
        """Publish what the prefix cache holds, and the load, as far as that is wanted. Raises UserError."""
        host = self._listener.getsockname()[0]
        self._events = events = open_events(self._settings, host, ready.page_size)
        if events is not None:
            self._spawn(events.answer_replays())
        else:
            self._load = open_load(self._settings, host)
        source = events or self._load
        if source is not None:
            self._service.kv_events = source.config
            self._spawn(push_loads(self._service, source.publish_load))

    def _close_events(self) -> None:
        for publisher in (self._events, self._load):
            if publisher is not None:
                publisher.close()

    def _announce(self, ready: SchedulerReady, scheduler_pid: int) -> None:
        settings, incarnation = self._settings, self._service.incarnation
        if settings.ready_file is not None:
            write_ready_file(
                Path(settings.ready_file),
                url=self._url,
                scheduler_pid=scheduler_pid,
                incarnation=incarnation,
                model=settings.model_name,
                ready=ready,
            )
        log.info("Ready: %s serves %s (incarnation %s).", self._url, settings.model_name, incarnation)

    async def _watch(self, scheduler: SchedulerProcess) -> None:
        """The replica cannot outlive its scheduler."""
        code = await scheduler.ended()
        if code in REPORTED:  # its message is under way, and says more than its exit code
            await asyncio.sleep(_LAST_WORDS_S)
        self._fail(how_it_ended(code), user_fault=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the replica's life; if it raises, the replica fails."""
        task = asyncio.create_task(work)
        self._background.append(task)
        task.add_done_callback(self._check)

    def _check(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, UserError):
            return self._fail(str(error), user_fault=True)
        log.error("The frontend hit an exception", exc_info=error)
        self._fail(f"The frontend failed: {type(error).__name__}: {error}", user_fault=False)

    def _fail(self, message: str, *, user_fault: bool) -> None:
        if not self._failure.done():
            self._failure.set_result(Failure(message, user_fault))

    async def _drain(self) -> None:
        """Refuse new requests, and wait for the running ones: until the grace is over, or something cuts it short."""
        self._service.lifecycle.move_to(ReplicaState.DRAINING)
        log.info(
            "Stopping: %d running sequences may take %g s.", self._service.num_live, self._settings.shutdown_grace_s
        )
        grace = asyncio.sleep(self._settings.shutdown_grace_s)
        await _first(self._service.wait_idle(), self._stop_now.wait(), self._failure, grace)

    def _install_signals(self) -> None:
        """The first signal drains, the second ends at once."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            (self._stop_now if self._stop.is_set() else self._stop).set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)


async def _first(*waits: Awaitable[object]) -> None:
    """Return when one of them is done; the tasks made for the others are cancelled. Raises what it raised."""
    futures = [asyncio.ensure_future(wait) for wait in waits]
    done, rest = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future, wait in zip(futures, waits, strict=True):
        if future in rest and future is not wait:
            future.cancel()
    for future in done:
        future.result()


def http_config(service: Service) -> uvicorn.Config:
    """How the replica's HTTP server runs. The replica does its own logging, and keeps its own signals."""
    settings = service.settings
    return uvicorn.Config(
        create_app(service),
        http=PlainProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=logs.log_accesses(settings.log_level_http, settings.uvicorn_access_log_exclude_prefixes),
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FLUSH_S,
        backlog=LISTEN_BACKLOG,
        root_path=settings.fastapi_root_path,
        **tls_options(settings),
    )


def _exit_code(failure: Failure | None) -> int:
    if failure is None:
        return 0
    if failure.user_fault:
        raise UserError(failure.message)
    log.error("%s", failure.message)
    return 1
