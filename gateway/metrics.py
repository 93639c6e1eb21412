"""What the data path counts, in plain numbers; Prometheus families named canopy_gateway_* are made when it asks.

Other parts of the gateway have metrics of their own: admission/, fleet/, kv_events/, proxy/ and routing/metrics.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.metrics import Histogram, counter, gauge
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerStatus
from gateway.proxy.upstream import FailureKind
from gateway.resilience.breaker import BreakerState
from gateway.resilience.outcomes import RETRIED_STATUSES
from gateway.routing.shadow import ShadowTally

DURATION_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0)
_CHOICE_BUCKETS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_PREFIX = "canopy_gateway_"
_RETRY_CAUSES = (
    *(f"status_{status}" for status in sorted(RETRIED_STATUSES)),
    *(kind.value for kind in FailureKind if kind not in (FailureKind.TIMEOUT, FailureKind.STALE)),
    *("silent", "resume"),
)


class _Served:
    """Answers of one endpoint by one model's workers."""

    __slots__ = ("durations_s", "statuses", "ttfts_s")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.durations_s = Histogram(DURATION_BUCKETS_S)
        self.ttfts_s = Histogram(DURATION_BUCKETS_S)


class _Tokens:
    """Tokens of one model. `gaps_s`: times between pieces of streams that are not in the histogram yet."""

    __slots__ = ("cached", "completion", "gaps_s", "itl_s", "prompt")

    def __init__(self) -> None:
        self.prompt = self.cached = self.completion = 0
        self.gaps_s: list[float] = []
        self.itl_s = Histogram(_GAP_BUCKETS_S)

    def fold(self) -> None:
        self.itl_s.observe_all(self.gaps_s)
        self.gaps_s.clear()


class Metrics(Collector):
    """Numbers are public: whoever counts adds to them.

    Labels are bounded: endpoints and reasons are ours, models are those of workers (empty: none was chosen), statuses
    three digits. Series for each worker are in gateway/fleet/metrics.py.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.inflight = 0
        self.client_disconnects = 0
        self.probe_failures = 0
        self.predicted_cached_tokens = 0
        self.actual_cached_tokens = 0
        self.overrated_tokens = 0  # predicted as cached, and not
        self.underrated_tokens = 0  # cached, and not predicted
        self.shadow: ShadowTally | None = None
        # From 0 on: Prometheus does not see the growth of a series that begins at 1.
        self.retries = Counter(dict.fromkeys(_RETRY_CAUSES, 0))
        self.upstream_errors = Counter({kind.value: 0 for kind in FailureKind})
        self.breaker_moves = Counter({state.value: 0 for state in BreakerState})  # by new state
        self.choices: Counter[str] = Counter()  # by reason
        self.choice_times_s = Histogram(_CHOICE_BUCKETS_S)
        self._served: dict[tuple[str, str], _Served] = {}  # by endpoint and model
        self._tokens: dict[str, _Tokens] = {}  # by model
        self._worker_states: dict[str, int] = {}
        registry.register(self)

    @property
    def answers(self) -> Counter[tuple[str, int]]:
        """Answers so far, by endpoint and status."""
        answers: Counter[tuple[str, int]] = Counter()
        for (endpoint, _), served in self._served.items():
            for status, count in served.statuses.items():
                answers[endpoint, status] += count
        return answers

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all answers that told their usage."""
        return sum(tokens.prompt for tokens in self._tokens.values())

    @property
    def cached_tokens(self) -> int:
        """Those of them that workers had cached."""
        return sum(tokens.cached for tokens in self._tokens.values())

    def answered(self, endpoint: str, model: str, status: int, duration_s: float) -> None:
        """An answer ended, in whatever way."""
        served = self._served.get((endpoint, model)) or self._of(endpoint, model)
        served.statuses[status] = served.statuses.get(status, 0) + 1
        served.durations_s.observe(duration_s)

    def first_token(self, endpoint: str, model: str, ttft_s: float) -> None:
        """The first body bytes of a streamed answer came."""
        served = self._served.get((endpoint, model)) or self._of(endpoint, model)
        served.ttfts_s.observe(ttft_s)

    def gaps_of(self, model: str) -> list[float]:
        """Where a stream appends the seconds between its pieces: the cheapest way to tell them, of which there are very
        many. Bounded by `fold`, which is to be called every now and then."""
        return self._tokens_of(model).gaps_s

    def fold(self) -> None:
        """Enter what streams appended into the histograms."""
        for tokens in self._tokens.values():
            tokens.fold()

    def tokens(self, model: str, prompt: int, cached: int, completion: int) -> None:
        """An answer told its usage."""
        tokens = self._tokens_of(model)
        tokens.prompt += prompt
        tokens.cached += cached
        tokens.completion += completion

    def prediction(self, predicted_cached: int, actual_cached: int) -> None:
        """An answer to one prompt told how many of its tokens were cached."""
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
        states = Counter(worker.status.value for worker in snapshot.workers)
        self._worker_states = {s.value: states[s.value] for s in WorkerStatus if s is not WorkerStatus.GONE}

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        self.fold()
        yield from self._answers()
        yield from self._token_counts()
        yield from self._predictions()
        yield from self._plain()

    def _of(self, endpoint: str, model: str) -> _Served:
        return self._served.setdefault((endpoint, model), _Served())

    def _tokens_of(self, model: str) -> _Tokens:
        tokens = self._tokens.get(model)
        if tokens is None:
            tokens = self._tokens[model] = _Tokens()
        return tokens

    def _answers(self) -> Iterator[Metric]:
        labels = ["endpoint", "model"]
        requests = CounterMetricFamily(_PREFIX + "requests", "Answers, by status", labels=[*labels, "status"])
        durations = HistogramMetricFamily(
            _PREFIX + "request_duration_seconds", "From the whole request to the end of its answer", labels=labels
        )
        ttfts = HistogramMetricFamily(
            _PREFIX + "time_to_first_token_seconds",
            "From the whole request to the first body bytes of a streamed answer",
            labels=labels,
        )
        for (endpoint, model), served in self._served.items():
            for status, count in served.statuses.items():
                requests.add_metric([endpoint, model, str(status)], count)
            served.durations_s.add_to(durations, [endpoint, model])
            served.ttfts_s.add_to(ttfts, [endpoint, model])
        yield from (requests, durations, ttfts)

    def _token_counts(self) -> Iterator[Metric]:
        models = self._tokens
        for name, text, field in (
            ("prompt_tokens", "Prompt tokens of answers that told their usage", "prompt"),
            ("cached_tokens", "Those of them that workers had cached", "cached"),
            ("completion_tokens", "Tokens that those answers wrote", "completion"),
        ):
            values = {model: float(getattr(tokens, field)) for model, tokens in models.items()}
            yield counter(_PREFIX + name, text, values, "model")
        gaps = HistogramMetricFamily(
            _PREFIX + "inter_token_latency_seconds", "Between two pieces of a streamed answer", labels=["model"]
        )
        for model, tokens in models.items():
            tokens.itl_s.add_to(gaps, [model])
        yield gaps

    def _predictions(self) -> Iterator[Metric]:
        """How right routing is about caches, and what the shadow policy would have hit."""
        yield counter(
            _PREFIX + "predicted_cached_tokens",
            "Cached tokens that routing expected, of answers to one prompt that told their usage",
            self.predicted_cached_tokens,
        )
        yield counter(
            _PREFIX + "actual_cached_tokens", "Cached tokens that workers told of those", self.actual_cached_tokens
        )
        yield counter(
            _PREFIX + "prediction_error_tokens",
            "Cached tokens that routing expected too many (over) or too few (under), summed over answers",
            {"over": self.overrated_tokens, "under": self.underrated_tokens},
            "direction",
        )
        if self.shadow is not None:
            yield from _shadow(self.shadow)

    def _plain(self) -> Iterator[Metric]:
        for name, text, label, counts in (
            ("retries", "Attempts after the first", "cause", self.retries),
            ("upstream_errors", "Failed attempts, by what failed", "kind", self.upstream_errors),
            ("choices", "Workers chosen, by reason", "reason", self.choices),
            ("breaker_transitions", "Circuit breakers, by the state they came into", "state", self.breaker_moves),
        ):
            yield counter(_PREFIX + name, text, counts, label)
        yield gauge(_PREFIX + "workers", "Workers by state", self._worker_states, "state")
        yield gauge(_PREFIX + "requests_in_flight", "Proxied requests in flight", self.inflight)
        for name, text, value in (
            ("client_disconnects", "Clients that left before the end of their answer", self.client_disconnects),
            ("probe_failures", "Failed health probes", self.probe_failures),
        ):
            yield counter(_PREFIX + name, text, value)
        choice_times = HistogramMetricFamily(_PREFIX + "choice_duration_seconds", "Time to choose a worker", labels=[])
        self.choice_times_s.add_to(choice_times, [])
        yield choice_times


def _shadow(tally: ShadowTally) -> Iterable[Metric]:
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
        ("shadow_choices", "Choices that the shadow policy was asked about", float(tally.choices)),
        ("shadow_agreements", "Choices in which it chose the same worker", float(tally.agreements)),
    ):
        yield counter(_PREFIX + name, text, value)
