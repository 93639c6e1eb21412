"""The gateway's metrics, but for admission's (gateway/admission/metrics.py). The data path counts in plain numbers;
Prometheus families are made when it asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerStatus
from gateway.resilience.breaker import BreakerState
from gateway.routing.shadow import ShadowTally

_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
_PREFIX = "canopy_gateway_"


class Histogram:
    """Observations of one label set."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Enter one duration."""
        self._counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Write cumulative buckets."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(labels, buckets, self._sum)


class Metrics(Collector):
    """Counters, gauges and histograms named canopy_gateway_*. Numbers are public: whoever counts adds to them.

    Labels are bounded: endpoints and reasons are ours, statuses three digits. There is none per worker; /workers tells
    those.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.inflight = 0
        self.client_disconnects = 0
        self.probe_failures = 0
        self.prompt_tokens = 0
        self.predicted_cached_tokens = 0
        self.actual_cached_tokens = 0
        self.overrated_tokens = 0  # predicted as cached, and not
        self.underrated_tokens = 0  # cached, and not predicted
        self.shadow: ShadowTally | None = None
        self.answers: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.retries: Counter[str] = Counter()  # by cause
        self.upstream_errors: Counter[str] = Counter()  # by kind
        self.choices: Counter[str] = Counter()  # by reason
        self.breaker_moves: Counter[str] = Counter()  # by new state
        self._durations: dict[str, Histogram] = {}  # by endpoint
        self._ttfts: dict[str, Histogram] = {}
        self._worker_states: dict[WorkerStatus, int] = {}
        registry.register(self)

    def answered(self, endpoint: str, status: int, duration_s: float) -> None:
        """An answer ended, in whatever way."""
        self.answers[endpoint, status] += 1
        histogram = self._durations.get(endpoint)
        if histogram is None:
            histogram = self._durations[endpoint] = Histogram()
        histogram.observe(duration_s)

    def first_token(self, endpoint: str, ttft_s: float) -> None:
        """The first body bytes of a streamed answer came."""
        histogram = self._ttfts.get(endpoint)
        if histogram is None:
            histogram = self._ttfts[endpoint] = Histogram()
        histogram.observe(ttft_s)

    def usage(self, prompt_tokens: int, predicted_cached: int, actual_cached: int) -> None:
        """An answer told its usage."""
        self.prompt_tokens += prompt_tokens
        self.predicted_cached_tokens += predicted_cached
        self.actual_cached_tokens += actual_cached
        self.overrated_tokens += max(predicted_cached - actual_cached, 0)
        self.underrated_tokens += max(actual_cached - predicted_cached, 0)

    def probe_failed(self) -> None:
        """A health probe failed."""
        self.probe_failures += 1

    def breaker_moved(self, state: BreakerState) -> None:
        """A worker's circuit breaker changed its state."""
        self.breaker_moves[state.value] += 1

    def workers(self, snapshot: Snapshot) -> None:
        """The set of workers changed."""
        self._worker_states = dict.fromkeys(set(WorkerStatus) - {WorkerStatus.GONE}, 0)
        for worker in snapshot.workers:
            self._worker_states[worker.status] += 1

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        yield from self._labelled()
        yield from self._predictions()
        yield from self._plain()
        for name, text, histograms in (
            ("request_duration_seconds", "From the whole request to the end of its answer", self._durations),
            (
                "time_to_first_token_seconds",
                "From the whole request to the first body bytes of a streamed answer",
                self._ttfts,
            ),
        ):
            family = HistogramMetricFamily(_PREFIX + name, text, labels=["endpoint"])
            for endpoint, histogram in histograms.items():
                histogram.add_to(family, [endpoint])
            yield family

    def _labelled(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(_PREFIX + "requests", "Answers, by status", labels=["endpoint", "status"])
        for (endpoint, status), count in self.answers.items():
            requests.add_metric([endpoint, str(status)], count)
        yield requests
        for name, text, label, counts in (
            ("retries", "Attempts after the first", "cause", self.retries),
            ("upstream_errors", "Failed attempts, by what failed", "kind", self.upstream_errors),
            ("choices", "Workers chosen, by reason", "reason", self.choices),
            ("breaker_transitions", "Circuit breakers, by the state they came into", "state", self.breaker_moves),
        ):
            family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
            for value, count in counts.items():
                family.add_metric([value], count)
            yield family
        states = GaugeMetricFamily(_PREFIX + "workers", "Workers by state", labels=["state"])
        for state, number in self._worker_states.items():
            states.add_metric([state.value], number)
        yield states

    def _predictions(self) -> Iterator[Metric]:
        """How right routing is about caches, and what the shadow policy would have hit."""
        family = CounterMetricFamily(
            _PREFIX + "prediction_error_tokens",
            "Cached tokens that routing expected too many (over) or too few (under), summed over answers",
            labels=["direction"],
        )
        family.add_metric(["over"], self.overrated_tokens)
        family.add_metric(["under"], self.underrated_tokens)
        yield family
        tally = self.shadow
        if tally is None:
            return
        family = CounterMetricFamily(
            _PREFIX + "modelled_cached_tokens",
            "Cached tokens by a model of the caches, had every request gone where this policy chose",
            labels=["policy", "role"],
        )
        family.add_metric([tally.acting, "acting"], tally.acting_cached_tokens)
        family.add_metric([tally.shadow, "shadow"], tally.shadow_cached_tokens)
        yield family
        for name, text, value in (
            ("modelled_prompt_tokens", "Prompt tokens that the models of the caches saw", tally.prompt_tokens),
            ("shadow_choices", "Choices that the shadow policy was asked about", tally.choices),
            ("shadow_agreements", "Choices in which it chose the same worker", tally.agreements),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)

    def _plain(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(_PREFIX + "requests_in_flight", "Proxied requests in flight", value=self.inflight)
        for name, text, value in (
            ("client_disconnects", "Clients that left before the end of their answer", self.client_disconnects),
            ("probe_failures", "Failed health probes", self.probe_failures),
            ("prompt_tokens", "Prompt tokens of answers that told their usage", self.prompt_tokens),
            ("predicted_cached_tokens", "Cached tokens that routing expected of those", self.predicted_cached_tokens),
            ("actual_cached_tokens", "Cached tokens that workers told of those", self.actual_cached_tokens),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
