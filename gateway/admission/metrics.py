"""What the gate counts, as Prometheus families named canopy_gateway_*."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.metrics import Histogram, counter, gauge
from gateway.admission.queue import AdmissionQueue, QueueRules

_PREFIX = "canopy_gateway_"
_CODES = ("queue_full", "displaced", "queue_timeout", "too_many_concurrent_requests", "rate_limit_exceeded")
_WAIT_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class AdmissionMetrics(Collector):
    """Numbers of one gate. Whoever counts adds to them. A gateway without a gate has no `queue`: its series are 0."""

    def __init__(self, registry: CollectorRegistry, queue: AdmissionQueue[Any] | None, clock: Clock) -> None:
        self._queue: AdmissionQueue[Any] = queue if queue is not None else AdmissionQueue(QueueRules())
        self._clock = clock
        self.waited = Histogram(_WAIT_BUCKETS_S)  # of those that waited and were let in
        self.refused = Counter(dict.fromkeys(_CODES, 0))  # by error code
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        queue = self._queue
        oldest_s = queue.oldest_arrival_s
        for name, text, value in (
            ("queue_requests", "Requests that wait for their turn", float(queue.waiting)),
            ("queue_bytes", "Bytes of their bodies", float(queue.waiting_bytes)),
            (
                "queue_oldest_age_seconds",
                "How long the first of them has waited, 0 without one",
                self._clock.now_s() - oldest_s if oldest_s is not None else 0.0,
            ),
            ("admitted_requests", "Requests that were let in and are not over", float(queue.admitted)),
        ):
            yield gauge(_PREFIX + name, text, value)
        yield counter(_PREFIX + "turned_away", "Requests not let in, by error code", self.refused, "code")
        waited = HistogramMetricFamily(
            _PREFIX + "queue_wait_seconds", "Time in the queue of requests that were let in from it", labels=[]
        )
        self.waited.add_to(waited, [])
        yield waited
