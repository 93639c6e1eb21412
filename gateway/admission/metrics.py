"""What the gate counts, as Prometheus families named canopy_gateway_*."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.admission.queue import AdmissionQueue
from gateway.metrics import Histogram

_PREFIX = "canopy_gateway_"


class AdmissionMetrics(Collector):
    """Numbers of one gate. Whoever counts adds to them."""

    def __init__(self, registry: CollectorRegistry, queue: AdmissionQueue[Any]) -> None:
        self._queue = queue
        self.waited = Histogram()  # of those that waited and were let in
        self.refused: Counter[str] = Counter()  # by error code
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        for name, text, value in (
            ("queue_requests", "Requests that wait for their turn", self._queue.waiting),
            ("queue_bytes", "Bytes of their bodies", self._queue.waiting_bytes),
            ("admitted_requests", "Requests that were let in and are not over", self._queue.admitted),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        refused = CounterMetricFamily(_PREFIX + "turned_away", "Requests not let in, by error code", labels=["code"])
        for code, count in self.refused.items():
            refused.add_metric([code], count)
        yield refused
        waited = HistogramMetricFamily(
            _PREFIX + "queue_wait_seconds", "Time in the queue of requests that were let in from it", labels=[]
        )
        self.waited.add_to(waited, [])
        yield waited
