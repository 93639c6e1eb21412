"""Every setting of the gateway, with its unit. Built once at the edge by `common.settings.load`, passed down whole."""

from __future__ import annotations

from pydantic import model_validator

from common.settings import option
from gateway.fleet.registry import check_url
from gateway.settings.access import AccessSettings
from gateway.settings.admission import AdmissionSettings
from gateway.settings.discovery import DiscoverySettings
from gateway.settings.exact import ExactSettings
from gateway.settings.http import HttpSettings
from gateway.settings.observability import ObservabilitySettings
from gateway.settings.routing import PREFIX_POLICIES, RoutingSettings

WORKERS = "Workers"
HTTP = "HTTP server"
LIMITS = "Limits and time-outs"
RESILIENCE = "Retries and circuit breaker"
HEALTH = "Health"


class GatewaySettings(
    AccessSettings,
    AdmissionSettings,
    DiscoverySettings,
    ExactSettings,
    HttpSettings,
    ObservabilitySettings,
    RoutingSettings,
):
    """Serve many workers behind one address."""

    worker_urls: list[str] = option([], "workers to serve, http://host:port each", category=WORKERS)
    ray_address: str | None = option(
        None, "Ray cluster whose fleet to follow, host:port or auto", category=WORKERS, min_length=1
    )

    host: str = option("127.0.0.1", "address to bind", category=HTTP, min_length=1)
    port: int = option(8000, "port to bind; 0 = any free one", category=HTTP, ge=0, le=65535)
    fast_path: bool = option(True, "answer generation requests inside the HTTP protocol", category=HTTP)
    shutdown_grace_s: float = option(
        30, "seconds running requests get when the gateway is told to stop", category=HTTP, ge=0
    )
    shutdown_settle_s: float = option(
        0,
        "seconds an idle gateway still serves when it is told to stop, so that balancers see its readiness answer 503",
        category=HTTP,
        ge=0,
    )

    max_body_bytes: int = option(64 * 2**20, "largest request body", category=LIMITS, ge=1024)
    connect_timeout_s: float = option(5, "seconds to connect to a worker", category=LIMITS, gt=0)
    first_byte_timeout_s: float = option(
        900, "seconds until a worker's answer begins (without streaming: until it is there)", category=LIMITS, gt=0
    )
    idle_timeout_s: float = option(300, "seconds between two pieces of an answer", category=LIMITS, gt=0)
    total_timeout_s: float = option(
        3600, "seconds a request may take", category=LIMITS, aliases=["request-timeout-secs"], gt=0
    )
    upstream_keep_alive_s: float = option(
        4, "seconds an idle connection to a worker is kept; below the worker's own", category=LIMITS, gt=0
    )
    upstream_max_idle: int = option(512, "idle connections kept per worker", category=LIMITS, ge=0)

    max_retries: int = option(
        3,
        "other workers tried when one fails before its first byte",
        category=RESILIENCE,
        aliases=["retry-max-retries"],
        ge=0,
    )
    disable_retries: bool = option(False, "never try another worker", category=RESILIENCE)
    retry_initial_backoff_ms: float = option(
        50, "milliseconds before a request's second retry; the first comes at once", category=RESILIENCE, ge=0
    )
    retry_max_backoff_ms: float = option(
        2000, "most milliseconds before a retry, also for the sake of a Retry-After", category=RESILIENCE, ge=0
    )
    retry_backoff_multiplier: float = option(1.5, "growth of that wait with each retry", category=RESILIENCE, ge=1)
    retry_jitter_factor: float = option(0.2, "share by which that wait varies", category=RESILIENCE, ge=0, le=1)
    retry_budget_ratio: float = option(0.2, "retries per request, over all requests", category=RESILIENCE, ge=0)
    retry_budget_per_s: float = option(10, "retries per second that are always allowed", category=RESILIENCE, ge=0)
    disable_circuit_breaker: bool = option(False, "give a worker requests however many it fails", category=RESILIENCE)
    cb_failure_threshold: int = option(
        10, "faults that open a worker's breaker, if they are at least half of its answers", category=RESILIENCE, ge=1
    )
    cb_success_threshold: int = option(
        3, "trials a half-open breaker admits, and all must succeed to close it", category=RESILIENCE, ge=1
    )
    cb_timeout_duration_s: float = option(
        15,
        "seconds a breaker stays open before it lets trials through",
        category=RESILIENCE,
        aliases=["cb-timeout-duration-secs"],
        gt=0,
    )
    cb_window_duration_s: float = option(
        120,
        "seconds within which those faults must come",
        category=RESILIENCE,
        aliases=["cb-window-duration-secs"],
        gt=0,
    )
    resume_streams: bool = option(
        False,
        "continue a stream whose worker failed on another one, from the prompt and the text so far",
        category=RESILIENCE,
    )
    drain_grace_s: float = option(
        600, "seconds a draining worker's requests get before they are ended", category=RESILIENCE, ge=0
    )

    health_endpoint: str = option(
        "/health", "path that is asked", category=HEALTH, aliases=["health-check-endpoint"], pattern="^/[!-~]*$"
    )
    health_interval_s: float = option(
        2,
        "seconds between two probes of a worker",
        category=HEALTH,
        aliases=["health-check-interval-secs"],
        gt=0,
    )
    health_timeout_s: float = option(
        5, "seconds a probe may take", category=HEALTH, aliases=["health-check-timeout-secs"], gt=0
    )
    health_max_failures: int = option(
        3,
        "missed probes in a row that take a worker out",
        category=HEALTH,
        aliases=["health-failure-threshold"],
        ge=1,
    )
    health_success_threshold: int = option(
        1, "good probes in a row that bring a worker in (again)", category=HEALTH, ge=1
    )

    @model_validator(mode="after")
    def _check(self) -> GatewaySettings:
        for url in self.worker_urls:
            try:
                check_url(url)
            except ValueError as error:
                raise ValueError(f"--worker-urls: {error}.") from None
        if self.routing_mode == "exact" and self.policy not in PREFIX_POLICIES:
            raise ValueError(
                f"--routing-mode exact is of no use to --policy {self.policy}; choose {' or '.join(PREFIX_POLICIES)}."
            )
        if self.worker_urls and self.ray_address is not None:
            raise ValueError("Give either --worker-urls or --ray-address, not both.")
        if self.service_discovery and (self.worker_urls or self.ray_address is not None):
            raise ValueError("--service-discovery finds the workers; leave out --worker-urls and --ray-address.")
        if 0 < self.max_concurrent_requests < self.gateway_processes:
            raise ValueError("--max-concurrent-requests is shared among --gateway-processes; give at least as many.")
        return self
