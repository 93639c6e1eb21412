"""The prefix index as Prometheus families named canopy_gateway_prefix_index_*."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from common.metrics import counter, gauge
from gateway.routing.prefix_index import PrefixIndex

_PREFIX = "canopy_gateway_prefix_index_"


class IndexMetrics(Collector):
    """Reads the index, or indexes, of the policies when Prometheus asks; all 0 with a policy that has none."""

    def __init__(self, registry: CollectorRegistry, indexes: Sequence[PrefixIndex]) -> None:
        self._indexes = indexes
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        indexes = self._indexes
        yield gauge(_PREFIX + "bytes", "Memory of the prefix index", sum(index.bytes_used for index in indexes))
        yield gauge(_PREFIX + "blocks", "Blocks of text in it, all workers together", sum(map(len, indexes)))
        yield counter(
            _PREFIX + "evicted_blocks",
            "Blocks dropped for lack of room, in the index or in what a worker's cache can hold",
            sum(index.evicted_blocks for index in indexes),
        )
