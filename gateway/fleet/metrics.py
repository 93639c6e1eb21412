"""Series for each worker, as text, since there may be hundreds; and the fleet as its controller tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from common.exposition import escaped, header
from common.fleet import ReplicaRecord
from common.metrics import counter, gauge
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerView
from gateway.resilience.breaker import BreakerState

_PREFIX = "canopy_gateway_worker_"
_BREAKER_STATES = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}
_STATES = ("starting", "ready", "draining", "failed")
_SERIES: tuple[tuple[str, str, str, Callable[[WorkerView], int]], ...] = (
    ("requests_in_flight", "gauge", "Requests at the worker, this gateway's", lambda worker: worker.load.inflight),
    ("pending_tokens", "gauge", "Prompt tokens it has still to compute", lambda worker: worker.load.pending_tokens),
    ("requests_total", "counter", "Attempts sent to the worker", lambda worker: worker.load.sent_total),
    (
        "breaker_state",
        "gauge",
        "Its circuit breaker: 0 closed, 1 open, 2 half-open",
        lambda worker: _BREAKER_STATES[worker.guard.breaker.state],
    ),
)


def worker_series(registry: Registry, common: str = "") -> str:
    """Prometheus text about the workers there are now; whoever is gone is not in it. `common` as in `render`."""
    workers = registry.snapshot.workers
    labels = [",".join(filter(None, (common, f'worker="{escaped(worker.name)}"'))) for worker in workers]
    lines = [header(f"{_PREFIX}state", "gauge", "The state of each worker as a label; always 1")]
    for worker, label in zip(workers, labels, strict=True):
        model = escaped(worker.model)
        lines.append(f'{_PREFIX}state{{{label},model="{model}",state="{worker.status.value}"}} 1.0')
    for name, kind, text, read in _SERIES:
        lines.append(header(_PREFIX + name, kind, text))
        lines += [f"{_PREFIX}{name}{{{label}}} {read(worker)}.0" for worker, label in zip(workers, labels, strict=True)]
    return "\n".join(lines) + "\n"


class FleetMetrics(Collector):
    """What the fleet's controller says of its replicas. `records`: of the last snapshot."""

    def __init__(self, registry: CollectorRegistry, records: Callable[[], Sequence[ReplicaRecord]]) -> None:
        self._records = records
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        records = self._records()
        states = Counter(dict.fromkeys(_STATES, 0))
        states.update(record.state for record in records)
        yield gauge("canopy_fleet_replicas", "Replicas by state", states, "state")
        yield counter(
            "canopy_fleet_replica_restarts",
            "Lives of a replica that ended and were followed by another",
            {record.replica_id: record.restarts for record in records},
            "replica",
        )
        yield gauge(
            "canopy_fleet_replica_crash_looping",
            "Whether several lives of a replica in a row were short",
            {record.replica_id: float(record.crash_looping) for record in records},
            "replica",
        )
