"""Composition root: builds every object of one gateway process from its settings and runs the background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector

from common.clock import Clock, MonotonicClock
from common.exposition import render
from common.tracing.otlp import OtlpSink, open_sink
from gateway.admission.factory import make_gate, make_keyring
from gateway.admission.keys import Keyring
from gateway.api.app import make_app
from gateway.api.cors import for_browsers
from gateway.api.guard import AccessGuard
from gateway.api.proxied import Asgi, ProxyEndpoints
from gateway.config import GatewaySettings
from gateway.console.hub import Hub
from gateway.console.mode import make_console
from gateway.console.routes import console_routes
from gateway.fleet.allowed_hosts import AllowedHosts
from gateway.fleet.control import WorkerControl
from gateway.fleet.discovery import Discovery, FleetDiscovery, StaticDiscovery
from gateway.fleet.health import HealthMonitor
from gateway.fleet.kept_fleet import kept_by_parent
from gateway.fleet.metrics import FleetMetrics, worker_series
from gateway.fleet.ray_discovery import RayFleetWatch
from gateway.fleet.registry import Registry
from gateway.kv_events.load_stream import LoadStreams
from gateway.kv_events.mode import ExactMode, make_exact_mode
from gateway.loop_lag import LoopLag
from gateway.metrics import Metrics
from gateway.processes.siblings import Member, Siblings
from gateway.proxy.access_log import AccessLog
from gateway.proxy.aliased import AliasedExchanges
from gateway.proxy.exchange import Exchange
from gateway.proxy.fetch import Fetcher, WorkerProbe
from gateway.proxy.forwarder import ConnectionPools, ExchangeFactory, Forwarder, bearer
from gateway.proxy.metrics import InFlightMetrics
from gateway.resilience.breaker import BreakerRules
from gateway.resilience.resuming_exchange import ResumingExchanges
from gateway.resilience.retry import RetryBudget, RetryRules
from gateway.resilience.timeouts import Timeouts
from gateway.routing.factory import make_policy
from gateway.routing.metrics import IndexMetrics
from gateway.routing.router import Router
from gateway.tracing import GatewayTracer
from gateway.tuning.mode import make_tuning
from gateway.tuning.routes import tuning_routes
from gateway.tuning.watch import TuningWatch


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of one gateway process that others talk to."""

    settings: GatewaySettings
    registry: Registry
    forwarder: Forwarder
    asgi: Asgi
    keyring: Keyring
    health: HealthMonitor
    discovery: Discovery
    exact: ExactMode | None
    loads: LoadStreams
    siblings: Siblings | None
    loop_lag: LoopLag
    console: Hub | None
    tuning: TuningWatch | None
    traces: OtlpSink | None

    @contextlib.asynccontextmanager
    async def running(self, on_failure: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Follow the fleet and keep time while inside; end what is left on the way out.

        `on_failure` is called if one of these tasks breaks: a gateway without it would serve ever more wrongly.
        """

        def check(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                on_failure(error)

        works = [self.discovery.run, self.health.run, self.forwarder.sweep, self.loop_lag.run]
        if self.siblings is not None:
            works.append(self.siblings.run)
        if self.console is not None:
            works.append(self.console.run)
        if self.tuning is not None:
            works.append(self.tuning.run)
        tasks = [asyncio.create_task(work()) for work in works]
        for task in tasks:
            task.add_done_callback(check)
        try:
            yield
        finally:
            self.forwarder.shut_down()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.loads.close()
            if self.exact is not None:
                await self.exact.follower.close()
            if self.traces is not None:
                await asyncio.to_thread(self.traces.close)


def build(
    settings: GatewaySettings,
    *,
    clock: Clock | None = None,
    metrics_registry: CollectorRegistry | None = None,
    rng: random.Random | None = None,
    member: Member | None = None,
) -> Gateway:
    """Wire one gateway, or one process of it if `member` says so. Call inside a running event loop."""
    clock = clock or MonotonicClock()
    rng = rng or random.Random()
    keyring = make_keyring(settings)
    metrics = Metrics(metrics_registry or CollectorRegistry())
    registry = Registry(breaker_rules_of(settings), metrics.breaker_moved)
    pools = ConnectionPools(
        clock,
        keep_alive_s=settings.upstream_keep_alive_s,
        max_idle=settings.upstream_max_idle,
        authorization=authorization_of(settings, keyring),
    )
    fetcher = Fetcher(pools)
    health = HealthMonitor(
        registry,
        WorkerProbe(fetcher),
        clock,
        interval_s=settings.health_interval_s,
        timeout_s=settings.health_timeout_s,
        max_failures=settings.health_max_failures,
        min_successes=settings.health_success_threshold,
        path=settings.health_endpoint,
        on_probe_failure=metrics.probe_failed,
        on_silence=lambda url, hangs: forwarder.worker_silent(url, hangs=hangs),
    )
    exact = make_exact_mode(settings, registry, metrics.registry)
    loads = LoadStreams(registry, clock, settings.stream_endpoints)
    policy, metrics.shadow = make_policy(settings, clock, rng, exact.index if exact is not None else None)
    router = Router(registry, policy)
    forwarder = Forwarder(
        router=router,
        registry=registry,
        pools=pools,
        timeouts=timeouts_of(settings),
        retry_budget=RetryBudget(ratio=settings.retry_budget_ratio, min_per_s=settings.retry_budget_per_s),
        retry_rules=retry_rules_of(settings),
        drain_grace_s=settings.drain_grace_s,
        rng=rng,
        metrics=metrics,
        clock=clock,
        access_log=AccessLog(enabled=settings.access_log),
        suspect=health.suspect,
        make_exchange=exchanges_of(settings, fetcher),
        gate=make_gate(settings, keyring, clock, metrics.registry),
        preparer=exact.preparer if exact is not None else None,
    )
    for subscriber in (metrics.workers, pools.follow, health.follow, loads.follow):
        registry.subscribe(subscriber)
    control = WorkerControl(registry, AllowedHosts(settings.allowed_worker_hosts))
    discovery = make_discovery(settings, registry)
    loop_lag = add_collectors(metrics.registry, forwarder, discovery, clock)
    metrics_text = partial(text_of, metrics.registry, registry, member)
    siblings = make_siblings(member, control, metrics_text)
    app = make_app(
        registry,
        siblings.metrics if siblings is not None else partial(render_here, metrics_text),
        forwarder,
        fetcher,
        control,
        aliases=settings.aliases,
        policy_name=settings.policy,
        max_body_bytes=settings.max_body_bytes,
    )
    tuning, tell_tuning = make_tuning(settings, registry, fetcher, clock, metrics.registry, member, siblings)
    app.include_router(tuning_routes(tell_tuning))
    traces = trace(settings, forwarder, clock)
    console = None
    if settings.console:
        facts = {"policy": settings.policy, "keys": keyring.guards_anything}
        console = make_console(registry, forwarder, siblings, member.index if member is not None else 0, facts)
        app.include_router(console_routes(console))
    asgi: Asgi = ProxyEndpoints(app, forwarder, max_body_bytes=settings.max_body_bytes)
    if keyring.guards_anything:
        asgi = AccessGuard(asgi, keyring, forwarder)
    if settings.cors_allowed_origins:
        asgi = for_browsers(asgi, settings.cors_allowed_origins)
    return Gateway(
        settings,
        registry,
        forwarder,
        asgi,
        keyring,
        health,
        discovery,
        exact,
        loads,
        siblings,
        loop_lag,
        console,
        tuning,
        traces,
    )


def trace(settings: GatewaySettings, forwarder: Forwarder, clock: Clock) -> OtlpSink | None:
    """Trace requests if that is wanted. Raises UserError."""
    sink = open_sink(settings, "canopy-gateway", f"{socket.gethostname()}-{os.getpid()}")
    if sink is not None:
        forwarder.observers += (GatewayTracer(sink, clock, settings.trace_sample_ratio),)
    return sink


def add_collectors(collectors: CollectorRegistry, forwarder: Forwarder, discovery: Discovery, clock: Clock) -> LoopLag:
    """Everything that /metrics tells beside what is counted on the way. Returns what must run to be measured."""
    index = forwarder.router.policy.index
    IndexMetrics(collectors, [index] if index is not None else [])
    InFlightMetrics(collectors, forwarder)
    if isinstance(discovery, FleetDiscovery):
        FleetMetrics(collectors, lambda: discovery.records)
    ProcessCollector(registry=collectors)
    return LoopLag(collectors, clock)


def text_of(collectors: CollectorRegistry, registry: Registry, member: Member | None = None) -> bytes:
    """The metrics of this process; if it is one of several, each sample says which."""
    process = f'process="{member.index}"' if member is not None else ""
    return render(collectors, process) + worker_series(registry, process).encode()


def make_siblings(member: Member | None, control: WorkerControl, metrics_text: Callable[[], bytes]) -> Siblings | None:
    """How this process talks with the gateway's others, if there are any."""
    if member is None:
        return None
    siblings = Siblings(member, control, metrics_text)
    control.announce = siblings.announce
    return siblings


async def render_here(metrics_text: Callable[[], bytes]) -> bytes:
    """The metrics of the only process."""
    return metrics_text()


def make_discovery(settings: GatewaySettings, registry: Registry) -> Discovery:
    """Who tells which workers there are."""
    if settings.ray_address is not None:
        return FleetDiscovery(registry, kept_by_parent(RayFleetWatch(settings.ray_address), os.environ))
    if settings.service_discovery:
        from gateway.fleet.kubernetes import KubernetesDiscovery, in_cluster  # httpx is needed for nothing else here

        cluster = in_cluster(os.environ, settings.service_discovery_namespace)
        return KubernetesDiscovery(registry, cluster, settings.selector, settings.service_discovery_port)
    return StaticDiscovery(registry, settings.worker_urls)


def exchanges_of(settings: GatewaySettings, fetcher: Fetcher) -> ExchangeFactory:
    """How a request becomes an exchange."""
    make: ExchangeFactory = ResumingExchanges(fetcher) if settings.resume_streams else Exchange
    return AliasedExchanges(make, settings.aliases) if settings.aliases else make


def authorization_of(settings: GatewaySettings, keyring: Keyring) -> bytes | None:
    """What workers without a key of their own get: the common key, else what the client sent, but never our own."""
    if settings.worker_api_key is not None:
        return bearer(settings.worker_api_key)
    return b"" if keyring.guards_anything else None


def timeouts_of(settings: GatewaySettings) -> Timeouts:
    """The time-outs of one request."""
    return Timeouts(
        connect_s=settings.connect_timeout_s,
        first_byte_s=settings.first_byte_timeout_s,
        idle_s=settings.idle_timeout_s,
        total_s=settings.total_timeout_s,
    )


def breaker_rules_of(settings: GatewaySettings) -> BreakerRules:
    """When workers' breakers open and close."""
    return BreakerRules(
        failure_threshold=settings.cb_failure_threshold,
        success_threshold=settings.cb_success_threshold,
        open_s=settings.cb_timeout_duration_s,
        window_s=settings.cb_window_duration_s,
        enabled=not settings.disable_circuit_breaker,
    )


def retry_rules_of(settings: GatewaySettings) -> RetryRules:
    """What one request may try."""
    return RetryRules(
        max_retries=0 if settings.disable_retries else settings.max_retries,
        initial_backoff_s=settings.retry_initial_backoff_ms / 1000,
        max_backoff_s=settings.retry_max_backoff_ms / 1000,
        multiplier=settings.retry_backoff_multiplier,
        jitter=settings.retry_jitter_factor,
    )
