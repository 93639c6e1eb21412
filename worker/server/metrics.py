"""Prometheus series of one replica, prefix `canopy_`: what requests experience, as the frontend sees it.

The scheduler's own numbers are in scheduler_metrics.py. All hang on a registry passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.metrics import Histogram, counter
from worker.config import WorkerSettings
from worker.server.answers import Answer

_TTFT_BUCKETS_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E_BUCKETS_S = (*_TTFT_BUCKETS_S, 600, 1200, 1800, 2400)
_ITL_BUCKETS_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_QUEUE_BUCKETS_S = (0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_LENGTH_BUCKETS_TOKENS = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10000, 15000, 20000, 30000),
    *(60000, 100000, 200000, 400000, 1000000),
)
FINISH_REASONS = ("stop", "length", "abort")


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


class _Kind:
    """What is counted of streamed and of whole answers apart."""

    def __init__(self, buckets: Buckets) -> None:
        self.requests = self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.ttft_s = Histogram(buckets.ttft_s)
        self.e2e_s = Histogram(buckets.e2e_s)


class RequestMetrics(Collector):
    """Numbers of all sequences. Called for each token, so they are plain; families are made when Prometheus asks."""

    def __init__(self, registry: CollectorRegistry, model: str, buckets: Buckets | None = None) -> None:
        self._model = model
        bounds = buckets or Buckets()
        self._ttft_bounds_s = bounds.ttft_s
        self._kinds = {stream: _Kind(bounds) for stream in (False, True)}
        self._structured = 0
        self._finished = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self._itl_s = Histogram(bounds.itl_s)
        self._tpot_s = Histogram(bounds.itl_s)
        self._queue_s = Histogram(_QUEUE_BUCKETS_S)
        self._prompt_lengths = Histogram(_LENGTH_BUCKETS_TOKENS)
        self._uncached_lengths = Histogram(_LENGTH_BUCKETS_TOKENS)
        self._output_lengths = Histogram(_LENGTH_BUCKETS_TOKENS)
        registry.register(self)

    def on_first_token(self, ttft_s: float, queue_time_s: float, *, stream: bool) -> None:
        """A sequence's first tokens came."""
        self._kinds[stream].ttft_s.observe(ttft_s)
        self._queue_s.observe(queue_time_s)

    def ttft(self) -> dict[str, list[float]]:
        """Times to first token as upper bounds in seconds, and the answers that began within each and in all."""
        counts = [sum(pair) for pair in zip(*(kind.ttft_s.counts for kind in self._kinds.values()), strict=True)]
        return {"bounds_s": list(self._ttft_bounds_s), "counts": list(accumulate(counts))}

    def on_tokens(self, gap_s: float, num_tokens: int) -> None:
        """Later tokens came, `gap_s` after the ones before: one observation each, as if evenly spread."""
        self._itl_s.observe(gap_s / num_tokens, num_tokens)

    def on_end(self, answer: Answer, e2e_s: float) -> None:
        """A sequence ended."""
        assert answer.finish is not None
        kind, num_outputs = self._kinds[answer.streamed], len(answer.output_ids)
        kind.requests += 1
        kind.e2e_s.observe(e2e_s)
        kind.generation_tokens += num_outputs
        self._finished[answer.finish.kind] += 1
        self._structured += answer.request.sampling.grammar is not None
        if answer.last is not None:
            prompt_tokens, cached_tokens = answer.last.prompt_tokens, answer.last.cached_tokens
            kind.prompt_tokens += prompt_tokens
            kind.cached_tokens += cached_tokens
            self._prompt_lengths.observe(prompt_tokens)
            self._uncached_lengths.observe(prompt_tokens - cached_tokens)
            self._output_lengths.observe(num_outputs)
        if num_outputs > 1:
            self._tpot_s.observe((answer.last_s - answer.first_s) / (num_outputs - 1))

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        model = {"model_name": self._model}
        for name, text, field in (
            ("num_requests", "Sequences that ended", "requests"),
            ("prompt_tokens", "Prompt tokens of ended sequences", "prompt_tokens"),
            ("cached_tokens", "Prompt tokens of ended sequences that the prefix cache held", "cached_tokens"),
            ("generation_tokens", "Tokens generated for ended sequences", "generation_tokens"),
        ):
            values = {_bool(stream): float(getattr(kind, field)) for stream, kind in self._kinds.items()}
            yield counter(f"canopy_{name}", text, values, "stream", model)
        text = "Sequences of them whose output had to match a schema or grammar"
        yield counter("canopy_structured_requests", text, self._structured, "", model)
        aborted = self._finished["abort"]
        yield counter("canopy_num_aborted_requests", "Sequences that ended before their answer did", aborted, "", model)
        yield counter("canopy_finished_requests", "Sequences that ended, by reason", self._finished, "reason", model)
        yield from self._by_kind(
            "time_to_first_token", "From arrival to first token", {s: k.ttft_s for s, k in self._kinds.items()}
        )
        yield from self._by_kind(
            "e2e_request_latency", "From arrival to the end", {s: k.e2e_s for s, k in self._kinds.items()}
        )
        yield from self._plain()

    def _by_kind(self, name: str, text: str, histograms: Mapping[bool, Histogram]) -> Iterator[Metric]:
        family = HistogramMetricFamily(f"canopy_{name}_seconds", text, labels=["model_name", "stream"])
        for stream, histogram in histograms.items():
            histogram.add_to(family, [self._model, _bool(stream)])
        yield family

    def _plain(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("inter_token_latency_seconds", "Between two tokens of a sequence", self._itl_s),
            (
                "time_per_output_token_seconds",
                "From first to last token, a token, of a sequence",
                self._tpot_s,
            ),
            ("queue_time_seconds", "From arrival to first admission", self._queue_s),
            ("prompt_length_tokens", "Prompts of ended sequences", self._prompt_lengths),
            ("uncached_prompt_length_tokens", "What of those the prefix cache did not hold", self._uncached_lengths),
            ("output_length_tokens", "Outputs of ended sequences", self._output_lengths),
        ):
            family = HistogramMetricFamily(f"canopy_{name}", text, labels=["model_name"])
            histogram.add_to(family, [self._model])
            yield family


def _bool(stream: bool) -> str:
    return "true" if stream else "false"
