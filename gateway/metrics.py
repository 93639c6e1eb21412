"""Every metric of the gateway, on an injected registry. Children are looked up once, not per request."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerStatus

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PREFIX = "canopy_gateway_"


class Metrics:
    """Counters, gauges and histograms named canopy_gateway_*."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests = Counter(
            _PREFIX + "requests", "Answers to generation requests", ["endpoint", "status"], registry=registry
        )
        self._duration = Histogram(
            _PREFIX + "request_duration_seconds",
            "From the whole request to the end of its answer",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._ttft = Histogram(
            _PREFIX + "time_to_first_token_seconds",
            "From the whole request to the first body bytes of a streamed answer",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.inflight = Gauge(_PREFIX + "requests_in_flight", "Generation requests in flight", registry=registry)
        self.retries = Counter(_PREFIX + "retries", "Attempts after the first", ["cause"], registry=registry)
        self.upstream_errors = Counter(
            _PREFIX + "upstream_errors", "Failed attempts, by what failed", ["kind"], registry=registry
        )
        self.client_disconnects = Counter(
            _PREFIX + "client_disconnects", "Clients that left before the end of their answer", registry=registry
        )
        self._choices = Counter(_PREFIX + "choices", "Workers chosen, by reason", ["reason"], registry=registry)
        self.prompt_tokens = Counter(
            _PREFIX + "prompt_tokens", "Prompt tokens of answers that told them", registry=registry
        )
        self.predicted_cached_tokens = Counter(
            _PREFIX + "predicted_cached_tokens", "Cached tokens routing expected of those", registry=registry
        )
        self.actual_cached_tokens = Counter(
            _PREFIX + "actual_cached_tokens", "Cached tokens workers told of those", registry=registry
        )
        self._workers = Gauge(_PREFIX + "workers", "Workers by state", ["state"], registry=registry)
        self.probe_failures = Counter(_PREFIX + "probe_failures", "Failed health probes", registry=registry)
        self._request_children: dict[tuple[str, int], Counter] = {}
        self._duration_children: dict[str, Histogram] = {}
        self._ttft_children: dict[str, Histogram] = {}
        self._choice_children: dict[str, Counter] = {}

    def answered(self, endpoint: str, status: int, duration_s: float) -> None:
        """An answer ended, in whatever way."""
        counter = self._request_children.get((endpoint, status))
        if counter is None:
            counter = self._request_children[endpoint, status] = self._requests.labels(endpoint, str(status))
            self._duration_children[endpoint] = self._duration.labels(endpoint)
        counter.inc()
        self._duration_children[endpoint].observe(duration_s)

    def first_token(self, endpoint: str, ttft_s: float) -> None:
        """The first body bytes of a streamed answer came."""
        histogram = self._ttft_children.get(endpoint)
        if histogram is None:
            histogram = self._ttft_children[endpoint] = self._ttft.labels(endpoint)
        histogram.observe(ttft_s)

    def chosen(self, reason: str) -> None:
        """A worker was chosen."""
        counter = self._choice_children.get(reason)
        if counter is None:
            counter = self._choice_children[reason] = self._choices.labels(reason)
        counter.inc()

    def usage(self, prompt_tokens: int, predicted_cached: int, actual_cached: int) -> None:
        """An answer told its usage."""
        self.prompt_tokens.inc(prompt_tokens)
        self.predicted_cached_tokens.inc(predicted_cached)
        self.actual_cached_tokens.inc(actual_cached)

    def workers(self, snapshot: Snapshot) -> None:
        """The set of workers changed."""
        states: Iterable[WorkerStatus] = (worker.status for worker in snapshot.workers)
        counts = dict.fromkeys(WorkerStatus, 0)
        for status in states:
            counts[status] += 1
        for status, count in counts.items():
            if status is not WorkerStatus.GONE:
                self._workers.labels(status.value).set(count)
