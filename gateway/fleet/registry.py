"""The only owner of the set of workers. Publishes immutable, versioned snapshots; nobody else changes a worker."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import urlsplit

from gateway.fleet.weight_changes import WeightChanges
from gateway.fleet.worker import NO_LIFE, Identity, LoadReport, Ours, WorkerLoad, WorkerStatus, WorkerView
from gateway.resilience.breaker import BreakerRules, BreakerState
from gateway.resilience.guard import ReplicaGuard, Standing
from gateway.resilience.outcomes import Outcome

_LOG = logging.getLogger("gateway.registry")
_HOST = re.compile(r"[\w.:%-]+")  # a name, or an address without its brackets
_LARGE_FLEET, _PAUSE_S = 100, 20e-6  # workers; seconds a worker between two snapshots for the sake of standings


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All workers at one moment.

    `ready`: model name -> routable workers, in order of registration: the READY ones of the best standing there is. So
    breakers and rests move requests elsewhere, and where there is no elsewhere they change nothing.
    `resting`: the READY ones beside those that only have to rest.
    """

    version: int
    workers: tuple[WorkerView, ...]
    ready: Mapping[str, tuple[WorkerView, ...]]
    resting: Mapping[str, tuple[WorkerView, ...]]

    def get(self, url: str) -> WorkerView | None:
        """The worker registered under `url`."""
        return next((worker for worker in self.workers if worker.url == url), None)

    @property
    def models(self) -> frozenset[str]:
        """Models of all workers that have told theirs, ready or not."""
        return frozenset(worker.model for worker in self.workers if worker.model)

    @property
    def cards(self) -> Mapping[str, Mapping[str, str | int]]:
        """What the workers of each model have told of it, by its name in /v1/models; of several lengths the least."""
        cards: dict[str, dict[str, str | int]] = {}
        for identity in (worker.identity for worker in self.workers):
            card = cards.setdefault(identity.model, {})
            if identity.task:
                card["task"] = identity.task
            if identity.context_tokens:
                least = int(card.get("max_model_len", identity.context_tokens))
                card["max_model_len"] = min(least, identity.context_tokens)
        return cards


def check_url(url: str) -> str:
    """The normal form of a worker's URL. Raises ValueError with a sentence."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{url!r} is not a worker URL: its port is not a number below 65536") from None
    name = parts.hostname or ""
    is_host = _HOST.fullmatch(name) and url.isprintable()  # urlsplit leaves out what is not
    if parts.scheme not in ("http", "https") or not is_host or port == 0:
        raise ValueError(f"{url!r} is not a worker URL; write http://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{url!r} is not a worker URL: give only scheme, host and port")
    host = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


class Registry:
    """Workers by URL. Every change makes a new snapshot and tells the subscribers.

    `on_breaker` hears each change of a breaker's state.
    """

    def __init__(
        self, breaker_rules: BreakerRules | None = None, on_breaker: Callable[[BreakerState], None] | None = None
    ) -> None:
        self._breaker_rules = breaker_rules or BreakerRules()
        self._on_breaker = on_breaker
        self._draining_since_s: dict[str, float] = {}
        self._standings_s = float("-inf")  # when a standing was last published
        self._standings_wait = False  # one waits for the next tick
        self._workers: dict[str, WorkerView] = {}
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self.weight_changes = WeightChanges()
        self._lives = 0
        self._version = 0
        self.snapshot = Snapshot(0, (), MappingProxyType({}), MappingProxyType({}))

    def subscribe(self, subscriber: Callable[[Snapshot], None]) -> None:
        """Call `subscriber` after each change, at once and in order."""
        self._subscribers.append(subscriber)

    def add(
        self,
        url: str,
        *,
        source: str,
        name: str = "",
        identity: Identity | None = None,
        api_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        model_id: str = "",
    ) -> WorkerView:
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
            api_key=api_key,
            model_id=model_id,
            labels=MappingProxyType(dict(labels or {})),
            load=WorkerLoad(),
            guard=self._new_guard(),
        )
        self._put(worker)
        return worker

    def identify(self, url: str, identity: Identity) -> None:
        """Take over what a worker says about itself. Another incarnation is another life."""
        worker = self._workers.get(url)
        if worker is None or worker.identity == identity:
            return
        restarted = bool(worker.identity.incarnation) and worker.identity.incarnation != identity.incarnation
        if restarted:
            worker = self._reborn(worker)
        self._put(replace(worker, identity=identity))

    def ready(self, url: str) -> None:
        """The worker answered its probe."""
        worker = self._workers.get(url)
        if worker is not None and worker.life == NO_LIFE:
            self._workers[url] = self._reborn(worker)
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

    def flushed(self, url: str, weights: str | None = None) -> None:
        """The worker's cache was emptied: from here on it is another life. `weights`: because it took these on."""
        worker = self._workers.get(url)
        if worker is not None and worker.life != NO_LIFE:
            weights = worker.weights if weights is None else weights
            self._put(replace(worker, life=self._next_life(), weights=weights))

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

    def reap(self, now_s: float, grace_s: float) -> None:
        """Forget draining workers that have nothing left to do, or have drained for longer than `grace_s`."""
        draining = [worker for worker in self.snapshot.workers if worker.status is WorkerStatus.DRAINING]
        since_s = {worker.url: self._draining_since_s.get(worker.url, now_s) for worker in draining}
        self._draining_since_s = since_s
        for worker in draining:
            if not worker.load.inflight or now_s - since_s[worker.url] >= grace_s:
                self.remove(worker.url)

    def begin_trial(self, worker: WorkerView) -> int:
        """A request was sent to a worker whose breaker is half-open. Returns the trial's number."""
        before = worker.guard.standing
        trial = worker.guard.begin_trial()
        if worker.guard.standing is not before:
            self._publish()
        return trial

    def judge(
        self,
        worker: WorkerView,
        outcome: Outcome,
        now_s: float,
        *,
        trial: int = 0,
        rest_s: float = 0.0,
        cause: str = "",
    ) -> None:
        """An attempt at a worker is over. Plain successes need not be told: see Breaker.successes."""
        self._watch(worker, lambda guard: guard.judge(outcome, trial, now_s, rest_s), now_s, cause)

    def tick(self, now_s: float) -> None:
        """Time has passed: end rests, let trials through, take old reports for less."""
        for worker in self.snapshot.workers:
            worker.load.age(now_s)
            guard = worker.guard
            if guard.standing is not Standing.GOOD:
                self._watch(worker, lambda guard: guard.tick(now_s), now_s, "")
        if self._standings_wait:
            self._publish()

    def report(self, url: str, report: LoadReport, before: Ours | None = None) -> None:
        """Keep a worker's own load numbers; `before` as in WorkerLoad.told. They are live state, not part of the
        snapshot."""
        worker = self._workers.get(url)
        if worker is not None:
            worker.load.told(report, before)

    def _move(self, url: str, status: WorkerStatus, message: str = "") -> None:
        worker = self._workers.get(url)
        if worker is None or worker.status is status or worker.status is WorkerStatus.DRAINING:
            return
        self._put(worker.moved(status, message))

    def _put(self, worker: WorkerView) -> None:
        self._workers[worker.url] = worker
        self._publish()

    def _watch(self, worker: WorkerView, change: Callable[[ReplicaGuard], None], now_s: float, cause: str) -> None:
        """Change a guard, and tell the world what that changed. What concerns a life that is over is dropped."""
        guard, present = worker.guard, self._workers.get(worker.url)
        if present is None or present.guard is not guard:
            return
        standing, state = guard.standing, guard.breaker.state
        change(guard)
        if guard.breaker.state is not state:
            self._say(worker, guard.breaker.state, cause)
        if guard.standing is not standing:
            self._publish_standing(now_s)

    def _publish_standing(self, now_s: float) -> None:
        """At once; but a large fleet in trouble must not do nothing else, and waits for the next tick now and then."""
        number = len(self._workers)
        if number > _LARGE_FLEET and now_s - self._standings_s < number * _PAUSE_S:
            self._standings_wait = True
            return
        self._standings_s = now_s
        self._publish()

    def _say(self, worker: WorkerView, state: BreakerState, cause: str) -> None:
        if state is BreakerState.OPEN:
            _LOG.warning(
                "worker %s fails its requests (%s); others get them for %g s",
                worker.name,
                cause,
                self._breaker_rules.open_s,
            )
        elif state is BreakerState.CLOSED:
            _LOG.info("worker %s serves again", worker.name)
        if self._on_breaker is not None:
            self._on_breaker(state)

    def _reborn(self, worker: WorkerView) -> WorkerView:
        """Another process at the same address."""
        return replace(worker, life=self._next_life(), guard=self._new_guard(), weights="")

    def _new_guard(self) -> ReplicaGuard:
        return ReplicaGuard(self._breaker_rules)

    def _publish(self) -> None:
        self._version += 1
        self._standings_wait = False
        by_standing: dict[str, dict[Standing, list[WorkerView]]] = {}
        for worker in self._workers.values():
            if worker.status is WorkerStatus.READY:
                by_standing.setdefault(worker.model, {}).setdefault(worker.guard.standing, []).append(worker)
        ready = {model: tuple(standings[min(standings)]) for model, standings in by_standing.items()}
        resting = {
            model: tuple(standings[Standing.RESTING])
            for model, standings in by_standing.items()
            if Standing.RESTING in standings and Standing.GOOD in standings
        }
        self.snapshot = Snapshot(
            self._version, tuple(self._workers.values()), MappingProxyType(ready), MappingProxyType(resting)
        )
        for subscriber in self._subscribers:
            subscriber(self.snapshot)

    def _next_life(self) -> int:
        self._lives += 1
        return self._lives
