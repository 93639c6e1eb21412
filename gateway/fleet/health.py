"""The probe loop: is each worker alive, who is it, how loaded is it. The registry is told; nobody is called back.

A busy worker may miss probes: as long as bytes of its answers keep coming, only a refused connection or its own word
takes it out of service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from common.clock import Clock
from gateway.fleet.metrics_load import load_of_metrics
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import Identity, LoadReport, Ours, WorkerStatus, WorkerView
from gateway.kv_events.endpoints import told_endpoints, told_tokenizer
from gateway.resilience.timeouts import MAX_SWEEP_S

_LOG = logging.getLogger("gateway.health")
_IDENTITY_EVERY = 10  # probes of a ready worker
_NOT_READY_INTERVAL_S = 0.5
_MAX_PARALLEL = 64
_PUSHED_S = 2.0  # after a pushed report the next one is expected for so long; idle workers push each second
_SERVER_INFO_PATHS = ("/server_info", "/get_server_info", "/model_info", "/get_model_info")
_METRICS_PATH = "/metrics"
_LOAD_PATHS = ("/v1/loads", "/get_load", _METRICS_PATH)


class Answer(Protocol):
    """A worker's answer to a small request."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def body(self) -> bytes:
        """The whole body."""
        ...


class Probe(Protocol):
    """Asks a worker. `Unreachable` tells a dead process from a silent one."""

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        """Raises Unreachable."""
        ...


class Unreachable(Exception):
    """No answer. `refused`: nothing listens there."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class _Record:
    """What the loop remembers about one worker between probes."""

    __slots__ = ("failures", "load_path", "next_s", "probes", "successes", "task", "want_identity")

    def __init__(self) -> None:
        self.next_s = float("-inf")
        self.failures = 0
        self.successes = 0  # in a row
        self.probes = 0
        self.want_identity = True
        self.load_path: str | None = _LOAD_PATHS[0]
        self.task: asyncio.Task[None] | None = None


class HealthMonitor:
    """Probes every registered worker at its own pace.

    `on_silence(url, hangs)` is called with each probe that a worker out of service does not answer: requests may be
    stuck there, unlike at one that refuses connections or says that it is not well. `hangs`: `max_failures` probes in a
    row failed, and for as long as one may last nothing of any answer came from there.
    """

    def __init__(
        self,
        registry: Registry,
        probe: Probe,
        clock: Clock,
        *,
        interval_s: float,
        timeout_s: float,
        max_failures: int,
        min_successes: int = 1,
        path: str = "/health",
        on_probe_failure: Callable[[], None],
        on_silence: Callable[[str, bool], None] = lambda url, hangs: None,
    ) -> None:
        self._registry = registry
        self._probe = probe
        self._clock = clock
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._max_failures = max_failures
        self._min_successes = min_successes
        self._path = path
        self._on_probe_failure = on_probe_failure
        self._on_silence = on_silence
        self._records: dict[str, _Record] = {}
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(_MAX_PARALLEL)

    def follow(self, snapshot: Snapshot) -> None:
        """Probe new workers at once, forget those that are gone."""
        present = {worker.url for worker in snapshot.workers}
        for url in [url for url in self._records if url not in present]:
            task = self._records.pop(url).task
            if task is not None:
                task.cancel()
        for url in present - self._records.keys():
            self._records[url] = _Record()
            self._wake.set()

    def suspect(self, url: str) -> None:
        """Something went wrong with a worker: probe it now, and ask again who it is."""
        record = self._records.get(url)
        if record is not None:
            record.next_s = float("-inf")
            record.want_identity = True
            self._wake.set()

    async def first_look(self, timeout_s: float) -> None:
        """Wait until the workers that are registered by now have been asked once, but no longer than `timeout_s`. Only
        while `run` runs."""
        await asyncio.sleep(0)  # whatever has just begun registers them, and `run` asks them
        visits = [record.task for record in self._records.values() if record.task is not None]
        if visits:
            await asyncio.wait(visits, timeout=timeout_s)

    async def run(self) -> None:
        """Probe for ever."""
        try:
            while True:
                self._wake.clear()
                now_s = self._clock.now_s()
                for url, record in self._records.items():
                    if record.task is None and record.next_s <= now_s:
                        record.task = asyncio.create_task(self._visit(url, record))
                due_s = [record.next_s for record in self._records.values() if record.task is None]
                delay_s = min([self._interval_s, *(due - now_s for due in due_s)])
                try:
                    async with asyncio.timeout(max(delay_s, 0.0)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            tasks = [record.task for record in self._records.values() if record.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _visit(self, url: str, record: _Record) -> None:
        try:
            async with self._slots:
                await self.check(url, record)
        except Exception:
            _LOG.exception("probe of %s failed unexpectedly", url)
        finally:
            worker = self._registry.snapshot.get(url)
            ready = worker is not None and worker.status is WorkerStatus.READY
            pace_s = self._interval_s if ready else min(self._interval_s, _NOT_READY_INTERVAL_S)
            record.next_s = self._clock.now_s() + pace_s
            record.task = None
            self._wake.set()

    async def check(self, url: str, record: _Record) -> None:
        """One probe: health, then identity if it is due, then load."""
        try:
            answer = await self._probe.get(url, self._path, self._timeout_s)
            if answer.status != 200:
                self._failed(url, record, f"{self._path} answered {answer.status}", certain=answer.status == 503)
                return
            await self._identify(url, record)
            record.failures = 0
            record.successes += 1
            if record.successes >= self._min_successes:
                self._registry.ready(url)
            await self._load(url, record)
        except Unreachable as error:
            if error.refused:
                self._on_probe_failure()
                record.successes = 0
                self._registry.lost(url, str(error))
                record.want_identity = True
            elif self._failed(url, record, str(error), certain=False):
                self._on_silence(url, self._hangs(url, record))

    def _failed(self, url: str, record: _Record, message: str, *, certain: bool) -> bool:
        """Returns whether the worker is out of service now."""
        self._on_probe_failure()
        record.failures += 1
        record.successes = 0
        worker = self._registry.snapshot.get(url)
        if worker is None or (not certain and self._tolerated(worker, record)):
            return False
        record.want_identity = True
        if worker.status is not WorkerStatus.DEGRADED:
            _LOG.warning("worker %s is degraded: %s", worker.name, message)
        self._registry.degrade(url, message)
        return True

    def _hangs(self, url: str, record: _Record) -> bool:
        """Not by a refused connection: a worker that ends in peace refuses new ones, and a dead one's are closed."""
        worker = self._registry.snapshot.get(url)
        return worker is not None and record.failures >= self._max_failures and not self._flows(worker)

    def _tolerated(self, worker: WorkerView, record: _Record) -> bool:
        if worker.status is not WorkerStatus.READY:
            return False
        return record.failures < self._max_failures or self._flows(worker)

    def _flows(self, worker: WorkerView) -> bool:
        """Whether something of any answer came from it within the time of a probe. Sweeps note it, a little later."""
        window_s = self._interval_s + self._timeout_s + MAX_SWEEP_S
        return self._clock.now_s() - worker.load.last_progress_s < window_s

    async def _identify(self, url: str, record: _Record) -> None:
        record.probes += 1
        worker = self._registry.snapshot.get(url)
        known = worker is not None and worker.model
        if known and not record.want_identity and record.probes % _IDENTITY_EVERY:
            return
        card = first_card(await self._first_json(url, ("/v1/models",)))
        identity = identity_of(card, await self._first_json(url, _SERVER_INFO_PATHS), url)
        if not identity.model:
            raise Unreachable("the worker does not tell its model's name", refused=False)
        record.want_identity = False
        record.load_path = _LOAD_PATHS[0] if record.load_path is None else record.load_path
        self._registry.identify(url, identity)

    async def _load(self, url: str, record: _Record) -> None:
        worker = self._registry.snapshot.get(url)
        if worker is None or self._pushes(worker):
            return
        while record.load_path is not None:
            before = worker.load.ours
            answer = await self._probe.get(url, record.load_path, self._timeout_s)
            if answer.status == 200:
                self._report(url, record.load_path, answer.body, before)
                return
            if answer.status not in (404, 405):
                return
            following = _LOAD_PATHS[_LOAD_PATHS.index(record.load_path) + 1 :]
            record.load_path = following[0] if following else None

    def _pushes(self, worker: WorkerView) -> bool:
        """Whether the worker's load comes without being asked for."""
        report = worker.load.report
        return report is not None and report.pushed and self._clock.now_s() - report.received_s < _PUSHED_S

    def _report(self, url: str, path: str, body: bytes, before: Ours) -> None:
        now_s = self._clock.now_s()
        report = load_of_metrics(body, now_s) if path == _METRICS_PATH else load_of(decode(body), now_s)
        if report is not None:
            self._registry.report(url, report, before)

    async def _first_json(self, url: str, paths: tuple[str, ...]) -> dict[str, Any]:
        """The first of `paths` that the worker has, as a JSON object; empty if it has none."""
        for path in paths:
            answer = await self._probe.get(url, path, self._timeout_s)
            fields = decode(answer.body) if answer.status == 200 else None
            if isinstance(fields, dict):
                return fields
        return {}


def decode(body: bytes) -> Any:
    """JSON, or None."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def identity_of(card: Mapping[str, Any], info: dict[str, Any], url: str = "") -> Identity:
    """Join the card of /v1/models with /server_info (settings flat, plus scheduler numbers) or /model_info."""
    name = card.get("id") or info.get("served_model_name") or info.get("model_path") or ""
    return Identity(
        model=str(name),
        task=str(card.get("task") or ""),
        context_tokens=_count(card.get("max_model_len")),
        incarnation=str(info.get("incarnation") or ""),
        max_total_tokens=_count(info.get("max_total_num_tokens")),
        max_running_requests=_count(info.get("max_running_requests")),
        page_size=_count(info.get("page_size")),
        events=told_endpoints(
            url, info.get("kv_events_config"), info.get("page_size"), info.get("in_batch_shared_tokens")
        ),
        tokenizer=told_tokenizer(info),
    )


def first_card(models: dict[str, Any]) -> dict[str, Any]:
    """The first model of a /v1/models answer; empty if it has none."""
    data = models.get("data")
    first = data[0] if isinstance(data, list) and data else None
    return first if isinstance(first, dict) else {}


def load_of(report: Any, now_s: float) -> LoadReport:
    """Sum the ranks of a /v1/loads or /get_load answer; what is missing counts as 0."""
    ranks = report.get("loads") if isinstance(report, dict) else report
    ranks = [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []

    def total(*names: str) -> int:
        return sum(_count(next((rank[name] for name in names if name in rank), 0)) for rank in ranks)

    def numbers(name: str) -> list[float]:
        return [float(rank[name]) for rank in ranks if isinstance(rank.get(name), int | float)]

    def mean(name: str) -> float:
        return sum(numbers(name)) / max(len(numbers(name)), 1)

    waiting = total("num_waiting_reqs")
    return LoadReport(
        running_requests=total("num_running_reqs") or max(total("num_reqs") - waiting, 0),
        waiting_requests=waiting,
        waiting_tokens=total("num_waiting_tokens", "num_pending_tokens"),
        used_tokens=total("num_used_tokens", "num_tokens"),
        max_total_tokens=total("max_total_num_tokens"),
        token_usage=mean("token_usage"),
        gen_throughput=sum(numbers("gen_throughput")),
        cache_hit_rate=mean("cache_hit_rate"),
        generated_tokens=sum(_generated(rank.get("totals")) for rank in ranks),
        received_s=now_s,
    )


def _generated(totals: Any) -> int:
    return _count(totals.get("generation_tokens_total")) if isinstance(totals, dict) else 0


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0
