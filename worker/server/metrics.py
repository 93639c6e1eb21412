"""Prometheus series of one replica, prefix `canopy_`: request counters and latencies, and the scheduler's own numbers.

All hang on a registry passed in. The scheduler's numbers come from its last load report, read when scraped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.config import WorkerSettings
from worker.ipc.messages import LoadReport, TokenDelta

_TTFT_BUCKETS_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E_BUCKETS_S = (*_TTFT_BUCKETS_S, 600, 1200, 1800, 2400)
_ITL_BUCKETS_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_QUEUE_BUCKETS_S = (0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_GAUGES = {
    "num_running_reqs": ("num_running_reqs", "Requests in the decode batch"),
    "num_queue_reqs": ("num_waiting_reqs", "Requests waiting"),
    "num_used_tokens": ("num_used_tokens", "KV pool tokens that running requests hold"),
    "kv_evictable_tokens": ("num_evictable_tokens", "KV pool tokens that only the prefix cache holds"),
    "kv_available_tokens": ("num_free_tokens", "KV pool tokens that nobody holds"),
    "max_total_num_tokens": ("max_total_num_tokens", "Size of the KV pool in tokens"),
    "max_running_requests": ("max_running_requests", "Bound on running requests"),
    "token_usage": ("token_usage", "Used share of the KV pool"),
    "gen_throughput": ("gen_throughput", "Generated tokens per second, 0 when idle"),
    "cache_hit_rate": ("cache_hit_rate", "Cached share of all prompt tokens so far"),
    "new_token_ratio": ("new_token_ratio", "Share of their remaining output that running requests are charged"),
}
_COUNTERS = {
    "num_retracted_requests": ("retracted_requests_total", "Retractions"),
    "scheduler_steps": ("steps_total", "Forward passes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Upper bounds of histogram buckets, in seconds, rising."""

    ttft_s: Sequence[float] = _TTFT_BUCKETS_S
    itl_s: Sequence[float] = _ITL_BUCKETS_S
    e2e_s: Sequence[float] = _E2E_BUCKETS_S

    @classmethod
    def of(cls, settings: WorkerSettings) -> Buckets:
        """Those of the settings, and the defaults where they name none."""
        return cls(
            ttft_s=settings.bucket_time_to_first_token or _TTFT_BUCKETS_S,
            itl_s=settings.bucket_inter_token_latency or _ITL_BUCKETS_S,
            e2e_s=settings.bucket_e2e_request_latency or _E2E_BUCKETS_S,
        )


class RequestMetrics:
    """What requests experience, as the frontend sees it."""

    def __init__(self, registry: CollectorRegistry, model: str, buckets: Buckets | None = None) -> None:
        labels = ["model_name"]
        bounds = buckets or Buckets()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"canopy_{name}", text, labels, registry=registry).labels(model)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"canopy_{name}", text, labels, buckets=buckets, registry=registry).labels(model)

        self._requests = counter("num_requests", "Sequences that ended")
        self._aborted = counter("num_aborted_requests", "Sequences that ended before their answer did")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended sequences")
        self._cached_tokens = counter("cached_tokens", "Prompt tokens of ended sequences that the prefix cache held")
        self._generation_tokens = counter("generation_tokens", "Tokens generated for ended sequences")
        self._ttft = histogram("time_to_first_token_seconds", "From arrival to first token", bounds.ttft_s)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a sequence", bounds.itl_s)
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the end", bounds.e2e_s)
        self._queue = histogram("queue_time_seconds", "From arrival to first admission", _QUEUE_BUCKETS_S)

    def on_first_token(self, ttft_s: float, queue_time_s: float) -> None:
        """A sequence's first tokens came."""
        self._ttft.observe(ttft_s)
        self._queue.observe(queue_time_s)

    def on_tokens(self, gap_s: float, num_tokens: int) -> None:
        """Later tokens came, `gap_s` after the ones before: one observation each, as if evenly spread."""
        for _ in range(num_tokens):
            self._itl.observe(gap_s / num_tokens)

    def on_end(self, last: TokenDelta | None, completion_tokens: int, e2e_s: float, *, aborted: bool) -> None:
        """A sequence ended; `last` is its latest news, if there was any."""
        self._requests.inc()
        self._e2e.observe(e2e_s)
        self._generation_tokens.inc(completion_tokens)
        if aborted:
            self._aborted.inc()
        if last is not None:
            self._prompt_tokens.inc(last.prompt_tokens)
            self._cached_tokens.inc(last.cached_tokens)


class LoadCollector(Collector):
    """Renders the last load report. `/metrics` fetches a fresh one before each scrape."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.report: LoadReport | None = None

    def collect(self) -> Iterator[Metric]:
        """The scheduler's series; none before the first report."""
        if self.report is None:
            return
        names, values = ["model_name"], [self._model]
        for name, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"canopy_{name}", text, labels=names)
            gauge.add_metric(values, getattr(self.report, field))
            yield gauge
        for name, (field, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"canopy_{name}", text, labels=names)
            counter.add_metric(values, getattr(self.report, field))
            yield counter
