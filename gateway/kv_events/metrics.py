"""Metrics of exact mode: canopy_gateway_exact_* and canopy_gateway_kv_event_*."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.follower import EventFollower
from gateway.kv_events.tokenizers import Tokenizers

_PREFIX = "canopy_gateway_"


class ExactModeMetrics(Collector):
    """Reads the parts when Prometheus asks. `prompts`: by how their tokens were found, or why they were not."""

    def __init__(
        self,
        registry: CollectorRegistry,
        index: ExactIndex,
        follower: EventFollower,
        tokenizers: Tokenizers,
        prompts: Counter[str],
    ) -> None:
        self._index = index
        self._follower = follower
        self._tokenizers = tokenizers
        self._prompts = prompts
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        for name, text, label, counts in (
            (
                "exact_prompts",
                "Prompts whose tokens are known (ids, tokenised, remembered), or why they were compared by text",
                "result",
                self._prompts,
            ),
            (
                "kv_event_incidents",
                "Event streams: gaps, resyncs (the first included), lost, broken, faulty batches",
                "kind",
                self._follower.counts,
            ),
        ):
            family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
            for value, count in counts.items():
                family.add_metric([value], count)
            yield family
        for name, text, number in (
            ("kv_event_streams", "Workers whose event streams are followed", self._follower.num_streams),
            ("exact_workers", "Workers whose cache is known", len(self._index.lives)),
            ("exact_blocks", "Blocks that those workers hold", len(self._index)),
            ("exact_token_cache_bytes", "Memory of remembered token ids", self._tokenizers.bytes_used),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=number)
        yield CounterMetricFamily(
            _PREFIX + "exact_index_drops", "Workers given up for lack of room in the index", value=self._index.dropped
        )
