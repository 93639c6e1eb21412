"""Looks at workers' metrics now and then, and judges each worker by the tuning guide. Off the data path: a request
never waits for more than one worker's text to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.tuning.finding import Finding
from common.tuning.judge import judge
from common.tuning.observation import Facts, Observation
from common.tuning.replica_watch import ReplicaWatch, series_by_replica
from gateway.fleet.registry import Registry
from gateway.fleet.worker import NO_LIFE, WorkerView
from gateway.proxy.fetch import Fetcher, FetchError

_TIMEOUT_S = 5.0
_AT_ONCE = 4  # workers
_MAX_POINTS = 300  # of a worker in its window; a short interval is stretched to that


@dataclass(slots=True)
class _Watched:
    life: str  # whose figures these are: counters begin anew with each
    watch: ReplicaWatch
    judged: tuple[Observation, list[Finding]] | None = None


class TuningWatch(Collector):
    """Owner of the windows. `interval_s`: between two looks at a worker, `window_s`: of the past that counts."""

    def __init__(
        self,
        registry: Registry,
        fetcher: Fetcher,
        clock: Clock,
        collectors: CollectorRegistry,
        *,
        interval_s: float,
        window_s: float,
    ) -> None:
        self._registry = registry
        self._fetcher = fetcher
        self._clock = clock
        self._interval_s = max(interval_s, window_s / _MAX_POINTS)
        self.window_s = window_s
        self._watched: dict[str, _Watched] = {}  # by worker's name
        collectors.register(self)

    async def run(self) -> None:
        """Look, for ever. The first time after one interval: before that there is nothing to judge."""
        due_s = self._clock.now_s()
        while True:
            due_s = max(due_s + self._interval_s, self._clock.now_s())
            await asyncio.sleep(due_s - self._clock.now_s())
            await self.look()

    async def look(self) -> None:
        """At each worker that may be alive, once. Who is gone, or tells no metrics of this kind, is forgotten."""
        workers = [worker for worker in self._registry.snapshot.workers if worker.life != NO_LIFE]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(worker: WorkerView) -> None:
            async with slots:
                await self._look_at(worker)

        await asyncio.gather(*map(ask, workers))
        names = {worker.name for worker in self._registry.snapshot.workers}
        self._watched = {name: watched for name, watched in self._watched.items() if name in names}

    @property
    def judged(self) -> list[tuple[Observation, list[Finding]]]:
        """The last word on each worker, by name."""
        return [judged for _, watched in sorted(self._watched.items()) if (judged := watched.judged) is not None]

    def collect(self) -> Iterator[Metric]:
        """A series for each finding there is now."""
        family = GaugeMetricFamily(
            "canopy_tuning_finding",
            "What the tuning guide says to a worker now, by rule of docs/tuning.md; the value is how sure it is",
            labels=["worker", "rule", "verdict", "flags"],
        )
        for seen, findings in self.judged:
            for finding in findings:
                flags = " ".join(f"--{name} {value}" for name, value in finding.flags.items())
                labels = [seen.replica, str(finding.rule), finding.verdict.value, flags]
                family.add_metric(labels, finding.confidence)
        yield family

    async def _look_at(self, worker: WorkerView) -> None:
        try:
            answer = await self._fetcher.fetch(worker.url, "/metrics", timeout_s=_TIMEOUT_S)
        except FetchError:
            return  # its window goes on, older
        series = series_by_replica(answer.body.decode(errors="replace")) if answer.status == 200 else {}
        if not series:
            self._watched.pop(worker.name, None)
            return
        watched, life = self._watched.get(worker.name), str(worker.life)
        if watched is None or watched.life != life:
            watched = self._watched[worker.name] = _Watched(life, ReplicaWatch(worker.name, self.window_s))
        watched.watch.take(self._clock.now_s(), next(iter(series.values())))
        seen = watched.watch.observation(Facts())
        watched.judged = seen, judge(seen)
