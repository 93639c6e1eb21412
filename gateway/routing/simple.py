"""Policies that do not look at the prompt: round robin, random, least load, power of two choices."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest, StatelessPolicy, chosen_first


class RoundRobin(StatelessPolicy):
    """Each worker in turn, per model."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        model = candidates[0].model
        turn = self._turns.get(model, 0)
        self._turns[model] = turn + 1
        return Choice(candidates[turn % len(candidates)], "round_robin")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        first = self._turns.get(candidates[0].model, 0) % len(candidates)
        return [Offer(worker, "round_robin") for worker in (*candidates[first:], *candidates[:first])]


class Random(StatelessPolicy):
    """Any worker."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        return Choice(self._rng.choice(candidates), "random")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        return chosen_first(twin(self._rng).choice(candidates), candidates, "random")


def queue_length(worker: WorkerView) -> tuple[int, int]:
    """Order of load: requests there, then how many it has had."""
    return worker.load.requests, worker.load.sent_total


class LeastLoad(StatelessPolicy):
    """The worker with the fewest requests; among equals the one that has had the fewest so far."""

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        return Choice(min(candidates, key=queue_length), "least_load")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        return [Offer(worker, "least_load") for worker in sorted(candidates, key=queue_length)]


class PowerOfTwo(StatelessPolicy):
    """The less loaded of two workers drawn at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        return Choice(min(_two(self._rng, candidates), key=queue_length), "power_of_two")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        drawn = sorted(_two(twin(self._rng), candidates), key=queue_length)
        others = [worker for worker in candidates if worker not in drawn]
        return [
            *(Offer(worker, "power_of_two") for worker in drawn),
            *(Offer(worker, "not drawn") for worker in others),
        ]


def _two(rng: random.Random, candidates: Sequence[WorkerView]) -> Sequence[WorkerView]:
    return rng.sample(candidates, 2) if len(candidates) > 1 else candidates


def twin(rng: random.Random) -> random.Random:
    """A generator that draws what `rng` will draw next, without moving it."""
    copied = random.Random()
    copied.setstate(rng.getstate())
    return copied
