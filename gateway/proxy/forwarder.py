"""What all exchanges share: router, connection pools, time-outs, retry budget, metrics, the set of live exchanges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from common.clock import Clock
from gateway.admission.gate import Gate
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import Ticket, WorkerView
from gateway.kv_events.preparer import Preparer
from gateway.metrics import Metrics
from gateway.proxy.access_log import AccessLog
from gateway.proxy.downstream import Downstream
from gateway.proxy.exchange import Exchange
from gateway.proxy.inbound import Inbound
from gateway.proxy.observer import ExchangeObserver
from gateway.proxy.outbox import Outbox
from gateway.proxy.pool import ConnectionPool
from gateway.proxy.upstream import Failure, FailureKind
from gateway.resilience.outcomes import Outcome
from gateway.resilience.retry import RetryBudget, RetryRules
from gateway.resilience.timeouts import Timeouts
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.router import Router

ExchangeFactory = Callable[["Forwarder", Inbound, Downstream], Exchange]


class ConnectionPools:
    """One pool per registered worker; follows the registry. `outbox`: what all connections of the gateway write to.

    `authorization`: as in ConnectionPool, for workers that were registered without a key of their own.
    """

    def __init__(self, clock: Clock, *, keep_alive_s: float, max_idle: int, authorization: bytes | None = None) -> None:
        self.outbox = Outbox()
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._max_idle = max_idle
        self._pools: dict[str, ConnectionPool] = {}
        self._authorization = authorization
        self._own_keys: dict[str, str] = {}  # by URL

    def get(self, url: str) -> ConnectionPool:
        """The pool of the worker at `url`."""
        pool = self._pools.get(url)
        if pool is None:
            key = self._own_keys.get(url)
            pool = ConnectionPool(
                url,
                self._clock,
                self.outbox,
                keep_alive_s=self._keep_alive_s,
                max_idle=self._max_idle,
                authorization=self._authorization if key is None else bearer(key),
            )
            self._pools[url] = pool
        return pool

    def follow(self, snapshot: Snapshot) -> None:
        """Drop the pools of workers that are gone; requests still there fail at once."""
        self._own_keys = {worker.url: worker.api_key for worker in snapshot.workers if worker.api_key is not None}
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


def bearer(key: str) -> bytes:
    """The Authorization of a key."""
    return b"Bearer " + key.encode()


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
        retry_rules: RetryRules,
        drain_grace_s: float,
        rng: random.Random,
        metrics: Metrics,
        clock: Clock,
        access_log: AccessLog,
        suspect: Callable[[str], None],
        make_exchange: ExchangeFactory = Exchange,
        gate: Gate | None = None,
        preparer: Preparer | None = None,
    ) -> None:
        self.preparer = preparer
        self.gate = gate
        self.make_exchange = make_exchange
        self.router = router
        self.pools = pools
        self.timeouts = timeouts
        self.retry_budget = retry_budget
        self._retry_rules = retry_rules
        self._drain_grace_s = drain_grace_s
        self._rng = rng
        self.metrics = metrics
        self.clock = clock
        self.draining = False
        self.observers: tuple[ExchangeObserver, ...] = ()
        self._access_log = access_log
        self._registry = registry
        self.weight_changes = registry.weight_changes
        self._suspect = suspect
        self._live: set[Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def inflight(self) -> int:
        """Exchanges that are not over."""
        return len(self._live)

    @property
    def live(self) -> list[Exchange]:
        """Those, in no order."""
        return list(self._live)

    def enter(self, exchange: Exchange) -> None:
        """An exchange begins."""
        self._live.add(exchange)
        self.metrics.inflight += 1
        self.retry_budget.earn()

    def leave(self, exchange: Exchange, status: int) -> None:
        """An exchange is over."""
        self._live.discard(exchange)
        if self.gate is not None:
            self.gate.leave(exchange)
        inbound, choice, duration_s = exchange.inbound, exchange.choice, self.clock.now_s() - exchange.start_s
        self.metrics.inflight -= 1
        self.metrics.answered(inbound.endpoint, choice.worker.model if choice is not None else "", status, duration_s)
        if self._access_log.enabled:
            worker, reason = (choice.worker.name, choice.reason) if choice is not None else ("", "")
            self._access_log.add(inbound.request_id, inbound.endpoint, status, worker, reason, duration_s)
        for observer in self.observers:
            observer.ended(exchange, status)

    def chose(self, exchange: Exchange, choice: Choice) -> None:
        """An exchange has a worker for its next attempt."""
        self.metrics.choices[choice.reason] += 1
        for observer in self.observers:
            observer.chose(exchange, choice)

    def retried(self, exchange: Exchange, cause: str) -> None:
        """An attempt failed, and the exchange goes on with another one."""
        self.metrics.retries[cause] += 1
        for observer in self.observers:
            observer.retried(exchange, cause)

    def first_token(self, exchange: Exchange, ttft_s: float) -> None:
        """The first body bytes of a streamed answer came."""
        assert exchange.choice is not None
        self.metrics.first_token(exchange.inbound.endpoint, exchange.choice.worker.model, ttft_s)
        for observer in self.observers:
            observer.first_token(exchange, ttft_s)

    def refused(self, endpoint: str, status: int) -> None:
        """A request was answered with an error before it became an exchange."""
        self.metrics.answered(endpoint, "", status, 0.0)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task that nobody awaits, and keep it alive."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call it after so many seconds."""
        asyncio.get_running_loop().call_later(delay_s, callback)

    def note_failure(self, worker: WorkerView, failure: Failure) -> None:
        """Tell the registry what an attempt showed about its worker."""
        self.metrics.upstream_errors[failure.kind.value] += 1
        if failure.kind is FailureKind.REFUSED:
            self._registry.lost(worker.url, failure.message)
        elif (
            failure.kind in (FailureKind.UNREACHABLE, FailureKind.CONNECT_TIMEOUT)
            # A worker whose answers flow is alive, and too busy to accept.
            and self.clock.now_s() - worker.load.last_progress_s > self.timeouts.connect_s
        ):
            self._registry.degrade(worker.url, failure.message)
        self._suspect(worker.url)

    def note_usage(
        self, inbound: Inbound, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int
    ) -> None:
        """An answer told its usage. That of several prompts together tells nothing about one."""
        self.metrics.tokens(choice.worker.model, prompt_tokens, cached_tokens, completion_tokens)
        if inbound.route.single:
            self.metrics.prediction(choice.cached_tokens, cached_tokens)
            self.router.policy.served(choice, prompt_tokens, cached_tokens, completion_tokens)

    def begin_trial(self, worker: WorkerView) -> int:
        """A request goes to a worker whose breaker is half-open."""
        return self._registry.begin_trial(worker)

    def judge(self, worker: WorkerView, ticket: Ticket, outcome: Outcome, rest_s: float, cause: str) -> None:
        """An attempt is over; called for all but plain successes and plain client faults."""
        self._registry.judge(worker, outcome, self.clock.now_s(), trial=ticket.trial, rest_s=rest_s, cause=cause)

    def retry_after_s(self, request: RouteRequest, tried: Sequence[str], start_s: float) -> float | None:
        """In how many seconds a request that began at `start_s` may be tried elsewhere; None: not at all.

        Whoever answered with back-pressure is spared its Retry-After, if the request has the time.
        """
        rules, now_s = self._retry_rules, self.clock.now_s()
        if len(tried) > rules.max_retries:
            return None
        rest_s = self.router.another_after_s(request, tried, now_s)
        if rest_s is None:
            return None
        wait_s = max(rest_s, rules.backoff_s(len(tried), self._rng))
        in_time = wait_s <= rules.max_backoff_s and now_s + wait_s < start_s + self.timeouts.total_s
        return wait_s if in_time and self.retry_budget.take(now_s) else None

    def worker_silent(self, url: str, *, hangs: bool) -> None:
        """A worker does not answer: let the requests that wait for it go elsewhere. If it `hangs`, nothing else comes
        from it either: end what has begun there."""
        for exchange in list(self._live):
            if not exchange.done and exchange.choice is not None and exchange.choice.worker.url == url:
                exchange.worker_silent()
                if hangs and not exchange.done and exchange.choice.worker.url == url:
                    exchange.worker_hangs()

    async def sweep(self) -> None:
        """Enforce time-outs, for ever."""
        while True:
            await asyncio.sleep(self.timeouts.sweep_s)
            now_s = self.clock.now_s()
            self.check_times(now_s)
            self.pools.close_idle()
            self._registry.tick(now_s)
            self._registry.reap(now_s, self._drain_grace_s)
            self._access_log.flush()
            self.metrics.fold()

    def check_times(self, now_s: float) -> None:
        """End every request whose time is over, whatever it waits for."""
        for exchange in list(self._live):
            if not exchange.done:
                exchange.check_time(now_s)

    def shut_down(self) -> None:
        """End every exchange now, as cleanly as its state allows."""
        for exchange in list(self._live):
            if not exchange.done:
                exchange.shut_down()
        self.pools.close()
        self._access_log.flush()
        self.pools.outbox.flush()
