"""Policies that do not look at the prompt: round robin, random, least load, power of two choices."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, RouteRequest, StatelessPolicy


class RoundRobin(StatelessPolicy):
    """Each worker in turn, per model."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        model = candidates[0].model
        turn = self._turns.get(model, 0)
        self._turns[model] = turn + 1
        return Choice(candidates[turn % len(candidates)], "round_robin")


class Random(StatelessPolicy):
    """Any worker."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        return Choice(self._rng.choice(candidates), "random")


def queue_length(worker: WorkerView) -> tuple[int, int]:
    """Order of load: requests there, then how many it has had."""
    return worker.load.requests, worker.load.sent_total


class LeastLoad(StatelessPolicy):
    """The worker with the fewest requests; among equals the one that has had the fewest so far."""

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        return Choice(min(candidates, key=queue_length), "least_load")


class PowerOfTwo(StatelessPolicy):
    """The less loaded of two workers drawn at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        drawn = self._rng.sample(candidates, 2) if len(candidates) > 1 else candidates
        return Choice(min(drawn, key=queue_length), "power_of_two")
