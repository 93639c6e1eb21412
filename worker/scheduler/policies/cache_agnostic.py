"""Policies that do not look at the prefix cache: fcfs, lof, random."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from operator import attrgetter

from worker.scheduler.policies.base import split_overdue
from worker.scheduler.queue import Lane
from worker.scheduler.request import Request

_max_new_tokens = attrgetter("max_new_tokens")


class FirstComeFirstServed:
    """Lane order: retracted requests, then by arrival."""

    def order(self, lane: Lane) -> Iterable[Request]:
        return lane


class LongestOutputFirst:
    """Most allowed outputs first, so that the longest do not run on alone at the end of a batch of work."""

    def order(self, lane: Lane) -> Iterable[Request]:
        overdue, others = split_overdue(lane)
        others.sort(key=_max_new_tokens, reverse=True)  # stable, also in reverse: lane order among equals
        return overdue + others


class RandomOrder:
    """A new random order in each pass. `rng` must be seeded alike on all ranks of a replica."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def order(self, lane: Lane) -> Iterator[Request]:
        overdue, others = split_overdue(lane)
        yield from overdue
        while others:  # draws only as many as are looked at
            index = self._rng.randrange(len(others))
            others[index], others[-1] = others[-1], others[index]
            yield others.pop()
