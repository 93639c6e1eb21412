"""The only owner of the set of workers. Publishes immutable, versioned snapshots; nobody else changes a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import urlsplit

from gateway.fleet.worker import NO_LIFE, Identity, LoadReport, WorkerLoad, WorkerStatus, WorkerView


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All workers at one moment. `ready`: model name -> routable workers, in order of registration."""

    version: int
    workers: tuple[WorkerView, ...]
    ready: Mapping[str, tuple[WorkerView, ...]]

    def get(self, url: str) -> WorkerView | None:
        """The worker registered under `url`."""
        return next((worker for worker in self.workers if worker.url == url), None)

    @property
    def models(self) -> frozenset[str]:
        """Models of all workers that have told theirs, ready or not."""
        return frozenset(worker.model for worker in self.workers if worker.model)


def check_url(url: str) -> str:
    """The normal form of a worker's URL. Raises ValueError with a sentence."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{url!r} is not a worker URL: its port is not a number below 65536") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a worker URL; write http://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{url!r} is not a worker URL: give only scheme, host and port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


class Registry:
    """Workers by URL. Every change makes a new snapshot and tells the subscribers."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerView] = {}
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._lives = 0
        self._version = 0
        self.snapshot = Snapshot(0, (), MappingProxyType({}))

    def subscribe(self, subscriber: Callable[[Snapshot], None]) -> None:
        """Call `subscriber` after each change, at once and in order."""
        self._subscribers.append(subscriber)

    def add(self, url: str, *, source: str, name: str = "", identity: Identity | None = None) -> WorkerView:
        """Register a worker as STARTING. A URL that is already there keeps its entry (and its source)."""
        if url in self._workers:
            return self._workers[url]
        worker = WorkerView(
            url=url,
            name=name or url.partition("://")[2],
            life=self._next_life(),
            status=WorkerStatus.STARTING,
            identity=identity or Identity(),
            source=source,
            load=WorkerLoad(),
        )
        self._put(worker)
        return worker

    def identify(self, url: str, identity: Identity) -> None:
        """Take over what a worker says about itself. Another incarnation is another life."""
        worker = self._workers.get(url)
        if worker is None or worker.identity == identity:
            return
        restarted = bool(worker.identity.incarnation) and worker.identity.incarnation != identity.incarnation
        life = self._next_life() if restarted else worker.life
        self._put(replace(worker, identity=identity, life=life))

    def ready(self, url: str) -> None:
        """The worker answered its probe."""
        worker = self._workers.get(url)
        if worker is not None and worker.life == NO_LIFE:
            self._workers[url] = replace(worker, life=self._next_life())
        self._move(url, WorkerStatus.READY)

    def degrade(self, url: str, message: str) -> None:
        """The worker is alive, perhaps, but must get nothing new until it answers a probe."""
        self._move(url, WorkerStatus.DEGRADED, message)

    def lost(self, url: str, message: str) -> None:
        """Nothing listens there: the process is dead and its cache with it."""
        worker = self._workers.get(url)
        if worker is None or worker.life == NO_LIFE or worker.status is WorkerStatus.DRAINING:
            return
        self._put(replace(worker.moved(WorkerStatus.DEGRADED, message), life=NO_LIFE))

    def flushed(self, url: str) -> None:
        """The worker's cache was emptied: from here on it is another life."""
        worker = self._workers.get(url)
        if worker is not None and worker.life != NO_LIFE:
            self._put(replace(worker, life=self._next_life()))

    def drain(self, url: str) -> WorkerView | None:
        """No new requests; those in flight may end. None if there is no such worker."""
        self._move(url, WorkerStatus.DRAINING)
        return self._workers.get(url)

    def remove(self, url: str) -> WorkerView | None:
        """Forget a worker. Returns its last view, GONE; None if there was none."""
        worker = self._workers.pop(url, None)
        if worker is None:
            return None
        self._publish()
        return worker.moved(WorkerStatus.GONE)

    def reap(self) -> None:
        """Forget drained workers that have nothing left to do."""
        for worker in self.snapshot.workers:
            if worker.status is WorkerStatus.DRAINING and not worker.load.inflight:
                self.remove(worker.url)

    def report(self, url: str, report: LoadReport) -> None:
        """Keep a worker's own load numbers. They are live state, not part of the snapshot."""
        worker = self._workers.get(url)
        if worker is not None:
            worker.load.told(report)

    def _move(self, url: str, status: WorkerStatus, message: str = "") -> None:
        worker = self._workers.get(url)
        if worker is None or worker.status is status or worker.status is WorkerStatus.DRAINING:
            return
        self._put(worker.moved(status, message))

    def _put(self, worker: WorkerView) -> None:
        self._workers[worker.url] = worker
        self._publish()

    def _publish(self) -> None:
        self._version += 1
        ready: dict[str, list[WorkerView]] = {}
        for worker in self._workers.values():
            if worker.status is WorkerStatus.READY:
                ready.setdefault(worker.model, []).append(worker)
        self.snapshot = Snapshot(
            self._version,
            tuple(self._workers.values()),
            MappingProxyType({model: tuple(workers) for model, workers in ready.items()}),
        )
        for subscriber in self._subscribers:
            subscriber(self.snapshot)

    def _next_life(self) -> int:
        self._lives += 1
        return self._lives
