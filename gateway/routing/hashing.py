"""Policies that hash: the same key, or the same beginning of a prompt, goes to the same worker.

Workers stand on a ring at many points each, so that one more or less moves only its own share of the keys.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence

from xxhash import xxh3_64_intdigest

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest, StatelessPolicy
from gateway.routing.simple import queue_length, twin

POINTS_PER_WORKER = 160
PREFIX_BYTES = 1024  # of the prompt that prefix_hash looks at; about 256 tokens
LOAD_FACTOR = 1.25  # times the mean of requests in flight, above which prefix_hash passes a worker over


class Ring:
    """All registered workers at their points, ready or not: a worker that comes back finds its keys again."""

    def __init__(self) -> None:
        self._urls: frozenset[str] = frozenset()
        self._version = -1
        self._points: list[int] = []
        self._owners: list[str] = []

    def follow(self, snapshot: Snapshot) -> None:
        """Take over the set of workers; cheap if nothing has changed."""
        if snapshot.version == self._version:
            return
        self._version = snapshot.version
        urls = frozenset(worker.url for worker in snapshot.workers)
        if urls == self._urls:
            return
        self._urls = urls
        placed = sorted(
            (xxh3_64_intdigest(f"{url}#{number}".encode()), url) for url in urls for number in range(POINTS_PER_WORKER)
        )
        self._points = [point for point, _ in placed]
        self._owners = [url for _, url in placed]

    def clockwise(self, key: bytes, candidates: Sequence[WorkerView]) -> Iterator[WorkerView]:
        """The candidates in the order in which the ring has them from the key's place on, each once."""
        left = {worker.url: worker for worker in candidates}
        start = bisect(self._points, xxh3_64_intdigest(key))
        for position in range(len(self._owners)):
            worker = left.pop(self._owners[(start + position) % len(self._owners)], None)
            if worker is not None:
                yield worker
                if not left:
                    return


class ConsistentHashing(StatelessPolicy):
    """By the request's key; without one, any worker."""

    def __init__(self, rng: random.Random) -> None:
        self._ring = Ring()
        self._rng = rng

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        if not request.key:
            return Choice(self._rng.choice(candidates), "no_key")
        self._ring.follow(snapshot)
        return Choice(next(self._ring.clockwise(request.key, candidates)), "key")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        if not request.key:
            first = twin(self._rng).choice(candidates)
            return [Offer(worker, "no_key") for worker in (first, *(one for one in candidates if one is not first))]
        self._ring.follow(snapshot)
        return [Offer(worker, "key") for worker in self._ring.clockwise(request.key, candidates)]


class PrefixHash(StatelessPolicy):
    """By the beginning of the prompt, with bounded loads: a worker far above the mean is passed over.

    Requests whose prompts differ only behind the first 1,024 bytes meet. Keeps no state per prompt.
    """

    def __init__(self) -> None:
        self._ring = Ring()

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        if not request.text:
            return Choice(min(candidates, key=queue_length), "load")
        self._ring.follow(snapshot)
        may_take = _below_bound(candidates)
        for position, worker in enumerate(self._ring.clockwise(request.text[:PREFIX_BYTES], candidates)):
            if may_take(worker):
                return Choice(worker, "spill" if position else "prefix_hash")
        raise AssertionError("the least loaded worker is below the bound, and every candidate is on the ring")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        if not request.text:
            return [Offer(worker, "load") for worker in sorted(candidates, key=queue_length)]
        self._ring.follow(snapshot)
        may_take = _below_bound(candidates)
        order = list(self._ring.clockwise(request.text[:PREFIX_BYTES], candidates))
        free = [Offer(worker, "prefix_hash") for worker in order if may_take(worker)]
        return free + [Offer(worker, "busy") for worker in order if not may_take(worker)]


def _below_bound(candidates: Sequence[WorkerView]) -> Callable[[WorkerView], bool]:
    """Whether one more request would leave a worker within the bound."""
    bound = LOAD_FACTOR * (sum(worker.load.requests for worker in candidates) + 1) / len(candidates)
    return lambda worker: worker.load.requests < bound
