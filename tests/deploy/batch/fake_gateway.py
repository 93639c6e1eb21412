"""A gateway for tests of `canopy batch`: answers by a rule, reports loads, counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Rule = Callable[[dict[str, Any], int], tuple[int, dict[str, Any], dict[str, str]]]
"""(body, how many requests came before) -> status, answer, headers."""


def echo(body: dict[str, Any], number: int) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The prompt back, with the usage of 10 tokens, 4 of them cached, and 3 out."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    return 200, {"choices": [{"text": body.get("prompt")}], "usage": usage}, {}


class FakeGateway:
    """Runs in a thread of its own. `delay_s` passes before each answer."""

    def __init__(self, rule: Rule = echo, *, delay_s: float = 0.0, port: int = 0) -> None:
        self.rule = rule
        self.delay_s = delay_s
        self.port = port
        self.seen: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0
        self.waiting = 0
        self.status_of_workers = 200
        self.keys: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[FakeGateway]:
        """Serve until the end of the block."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(10)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/workers", self._workers)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _workers(self, request: web.Request) -> web.Response:
        load = {"running_requests": self.in_flight, "waiting_requests": self.waiting, "token_usage": 0.5}
        workers = [{"url": "http://w", "state": "ready", "load": load}, {"url": "http://x", "state": "starting"}]
        return web.json_response({"workers": workers}, status=self.status_of_workers)

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = len(self.seen)
        self.seen.append(body)
        self.keys.add(request.headers.get("authorization", ""))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.delay_s)
            status, answer, headers = self.rule(body, number)
        finally:
            self.in_flight -= 1
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer, status=status or 200, headers={"x-request-id": f"id-{number}", **headers})
