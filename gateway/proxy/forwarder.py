"""What all exchanges share: router, connection pools, time-outs, retry budget, metrics, the set of live exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from common.clock import Clock
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import WorkerView
from gateway.metrics import Metrics
from gateway.proxy.access_log import AccessLog
from gateway.proxy.exchange import Exchange
from gateway.proxy.retry import RetryBudget
from gateway.proxy.upstream import ConnectionPool, Failure, FailureKind
from gateway.routing.router import Router

_MAX_SWEEP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Bounds on one request, in seconds. `first_byte_s` counts from an attempt's start, `total_s` from the first's."""

    connect_s: float
    first_byte_s: float
    idle_s: float
    total_s: float

    @property
    def sweep_s(self) -> float:
        """How often to look: time-outs are late by at most this."""
        return min(_MAX_SWEEP_S, min(self.first_byte_s, self.idle_s, self.total_s) / 4)


class ConnectionPools:
    """One pool per registered worker; follows the registry."""

    def __init__(self, clock: Clock, *, keep_alive_s: float, max_idle: int) -> None:
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._max_idle = max_idle
        self._pools: dict[str, ConnectionPool] = {}

    def get(self, url: str) -> ConnectionPool:
        """The pool of the worker at `url`."""
        pool = self._pools.get(url)
        if pool is None:
            pool = ConnectionPool(url, self._clock, keep_alive_s=self._keep_alive_s, max_idle=self._max_idle)
            self._pools[url] = pool
        return pool

    def follow(self, snapshot: Snapshot) -> None:
        """Drop the pools of workers that are gone; requests still there fail at once."""
        if len(self._pools) == 0:
            return
        present = {worker.url for worker in snapshot.workers}
        for url in [url for url in self._pools if url not in present]:
            self._pools.pop(url).close(Failure(FailureKind.CUT, "the worker was removed"))

    def close_idle(self) -> None:
        """Drop connections that were idle for too long."""
        for pool in self._pools.values():
            pool.close_idle()

    def close(self) -> None:
        """Drop everything."""
        for pool in self._pools.values():
            pool.close(Failure(FailureKind.CUT, "the gateway is shutting down"))


class Forwarder:
    """Shared state of the data path. `suspect` is called with a worker's URL when its behaviour asks for a probe."""

    def __init__(
        self,
        *,
        router: Router,
        registry: Registry,
        pools: ConnectionPools,
        timeouts: Timeouts,
        retry_budget: RetryBudget,
        max_retries: int,
        metrics: Metrics,
        clock: Clock,
        access_log: AccessLog,
        suspect: Callable[[str], None],
    ) -> None:
        self.router = router
        self.pools = pools
        self.timeouts = timeouts
        self.retry_budget = retry_budget
        self.max_retries = max_retries
        self.metrics = metrics
        self.clock = clock
        self.draining = False
        self._access_log = access_log
        self._registry = registry
        self._suspect = suspect
        self._live: set[Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def inflight(self) -> int:
        """Exchanges that are not over."""
        return len(self._live)

    def enter(self, exchange: Exchange) -> None:
        """An exchange begins."""
        self._live.add(exchange)
        self.metrics.inflight += 1
        self.retry_budget.earn()

    def leave(self, exchange: Exchange, status: int) -> None:
        """An exchange is over."""
        self._live.discard(exchange)
        inbound, duration_s = exchange.inbound, self.clock.now_s() - exchange.start_s
        self.metrics.inflight -= 1
        self.metrics.answered(inbound.endpoint, status, duration_s)
        if self._access_log.enabled:
            choice = exchange.choice
            worker, reason = (choice.worker.name, choice.reason) if choice is not None else ("", "")
            self._access_log.add(inbound.request_id, inbound.endpoint, status, worker, reason, duration_s)

    def refused(self, endpoint: str, status: int) -> None:
        """A request was answered with an error before it became an exchange."""
        self.metrics.answered(endpoint, status, 0.0)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task that nobody awaits, and keep it alive."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note_failure(self, worker: WorkerView, failure: Failure) -> None:
        """Tell the registry what an attempt showed about its worker."""
        self.metrics.upstream_errors[failure.kind.value] += 1
        if failure.kind is FailureKind.REFUSED:
            self._registry.lost(worker.url, failure.message)
        elif failure.kind in (FailureKind.UNREACHABLE, FailureKind.CONNECT_TIMEOUT):
            self._registry.degrade(worker.url, failure.message)
        self._suspect(worker.url)

    async def sweep(self) -> None:
        """Enforce time-outs, for ever."""
        while True:
            await asyncio.sleep(self.timeouts.sweep_s)
            now_s = self.clock.now_s()
            for exchange in list(self._live):
                if not exchange.done:
                    exchange.check_time(now_s)
            self.pools.close_idle()
            self._registry.reap()
            self._access_log.flush()

    def shut_down(self) -> None:
        """End every exchange now, as cleanly as its state allows."""
        for exchange in list(self._live):
            if not exchange.done:
                exchange.shut_down()
        self.pools.close()
        self._access_log.flush()
