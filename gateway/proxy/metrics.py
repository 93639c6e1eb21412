"""Ages of the requests in flight, as Prometheus families named canopy_gateway_*."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from common.metrics import gauge
from gateway.proxy.forwarder import Forwarder

_BOUNDS_S = (1.0, 10.0, 60.0, 300.0)
_AGES = ("0s-1s", "1s-10s", "10s-60s", "60s-300s", "300s-")


class InFlightMetrics(Collector):
    """Looks at the live exchanges when Prometheus asks."""

    def __init__(self, registry: CollectorRegistry, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Both families."""
        now_s = self._forwarder.clock.now_s()
        ages_s = [now_s - exchange.start_s for exchange in self._forwarder.live]
        counts = dict.fromkeys(_AGES, 0)
        for age_s in ages_s:
            counts[_AGES[bisect_right(_BOUNDS_S, age_s)]] += 1
        yield gauge(
            "canopy_gateway_requests_in_flight_by_age", "Proxied requests in flight, by how old they are", counts, "age"
        )
        yield gauge(
            "canopy_gateway_oldest_request_age_seconds",
            "Age of the oldest request in flight, 0 without one",
            max(ages_s, default=0.0),
        )
