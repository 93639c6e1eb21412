"""Sticky sessions: a key stays with the worker it was given first, until it has been idle for too long."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Sequence
from enum import Enum

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest, StatelessPolicy
from gateway.routing.simple import queue_length, twin

MAX_KEYS = 1_000_000  # remembered; the longest idle go first
_MAX_HOMES = 2  # workers remembered for a key: where it lives, and where it lived before


class Assignment(Enum):
    """How a key that has no worker yet gets one."""

    RANDOM = "random"
    MIN_LOAD = "min_load"  # the fewest requests
    MIN_GROUP = "min_group"  # the fewest keys


class Manual(StatelessPolicy):
    """By key. A key whose worker is not a candidate moves to another at once, and back if that one fails too."""

    def __init__(
        self, clock: Clock, rng: random.Random, *, assignment: Assignment, max_idle_s: float, sweep_interval_s: float
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._assignment = assignment
        self._max_idle_s = max_idle_s
        self._sweep_interval_s = sweep_interval_s
        self._next_sweep_s = clock.now_s() + sweep_interval_s
        self._homes: OrderedDict[bytes, tuple[float, tuple[str, ...]]] = OrderedDict()  # last use, URLs, newest first
        self._groups: Counter[str] = Counter()  # keys that live at a URL

    def __len__(self) -> int:
        return len(self._homes)

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        now_s = self._clock.now_s()
        if now_s >= self._next_sweep_s:
            self._sweep(now_s)
        if not request.key:
            return Choice(min(candidates, key=queue_length), "no_key")
        home = self._home(request.key, candidates, now_s)
        worker = home or self._assign(candidates, self._rng)
        self._remember(request.key, worker.url, now_s)
        return Choice(worker, "sticky" if home else "assigned")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        by_load = sorted(candidates, key=queue_length)
        if not request.key:
            return [Offer(worker, "no_key") for worker in by_load]
        home = self._home(request.key, candidates, self._clock.now_s())
        first = home or self._assign(candidates, twin(self._rng))
        others = [Offer(worker, "not chosen") for worker in by_load if worker is not first]
        return [Offer(first, "sticky" if home else "assigned"), *others]

    def _home(self, key: bytes, candidates: Sequence[WorkerView], now_s: float) -> WorkerView | None:
        """The worker the key lives at, if it can be had."""
        used_s, urls = self._homes.get(key, (now_s, ()))
        if now_s - used_s > self._max_idle_s:
            return None
        by_url = {worker.url: worker for worker in candidates} if urls else {}
        return next((by_url[url] for url in urls if url in by_url), None)

    def _assign(self, candidates: Sequence[WorkerView], rng: random.Random) -> WorkerView:
        match self._assignment:
            case Assignment.RANDOM:
                return rng.choice(candidates)
            case Assignment.MIN_LOAD:
                return min(candidates, key=queue_length)
            case Assignment.MIN_GROUP:
                return min(candidates, key=lambda worker: (self._groups[worker.url], *queue_length(worker)))

    def _remember(self, key: bytes, url: str, now_s: float) -> None:
        before = self._homes.pop(key, (now_s, ()))[1]
        if before and before[0] != url:
            self._leave(before[0])
        if not before or before[0] != url:
            self._groups[url] += 1
        self._homes[key] = now_s, (url, *(one for one in before if one != url))[:_MAX_HOMES]
        if len(self._homes) > MAX_KEYS:
            self._leave(self._homes.popitem(last=False)[1][1][0])

    def _leave(self, url: str) -> None:
        self._groups[url] -= 1
        if not self._groups[url]:
            del self._groups[url]

    def _sweep(self, now_s: float) -> None:
        """Forget idle keys: they stand first."""
        self._next_sweep_s = now_s + self._sweep_interval_s
        while self._homes and now_s - next(iter(self._homes.values()))[0] > self._max_idle_s:
            self._leave(self._homes.popitem(last=False)[1][1][0])
