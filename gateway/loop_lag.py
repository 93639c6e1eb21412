"""How late the event loop wakes: what every request in this process waits at each of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.metrics import Histogram

_INTERVAL_S = 0.25
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag(Collector):
    """Sleeps and looks at the clock."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._lags_s = Histogram(_BUCKETS_S)
        registry.register(self)

    async def run(self) -> None:
        """Measure, for ever."""
        while True:
            due_s = self._clock.now_s() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            self._lags_s.observe(max(self._clock.now_s() - due_s, 0.0))

    def collect(self) -> Iterator[Metric]:
        """The one family."""
        family = HistogramMetricFamily(
            "canopy_gateway_event_loop_lag_seconds", "How much later than asked the event loop woke", labels=[]
        )
        self._lags_s.add_to(family, [])
        yield family
