"""Buckets by length: short prompts to some workers, long ones to others, so that short ones do not wait behind long.

The bounds are cut so that each worker gets the same share of the prompt bytes of the last minutes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest, StatelessPolicy
from gateway.routing.simple import queue_length

FIRST_SPAN_BYTES = 4096  # lengths up to which the first cut is even
RECUT_S = 5.0
_WINDOW = 2048  # prompts that a cut is made from


class Bucket(StatelessPolicy):
    """By length, while loads are near; else the least loaded.

    Far apart: the most loaded candidate has over `abs_threshold` requests more, and over `rel_threshold` times as many,
    as the least loaded.
    """

    def __init__(self, clock: Clock, *, abs_threshold: int, rel_threshold: float) -> None:
        self._clock = clock
        self._abs_threshold = abs_threshold
        self._rel_threshold = rel_threshold
        self._lengths: dict[str, deque[int]] = {}  # model -> prompt bytes of its last requests
        self._cuts: dict[tuple[str, int], tuple[float, list[int]]] = {}  # (model, buckets) -> when, upper bounds

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        model = candidates[0].model
        bounds = self._bounds(model, len(candidates), keep=True)
        self._lengths.setdefault(model, deque(maxlen=_WINDOW)).append(request.prompt_bytes)
        if not request.prompt_bytes or self._far_apart(candidates):
            return Choice(min(candidates, key=queue_length), "load")
        return Choice(_home(bounds, request.prompt_bytes, candidates), "bucket")

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        by_load = sorted(candidates, key=queue_length)
        if not request.prompt_bytes or self._far_apart(candidates):
            return [Offer(worker, "load") for worker in by_load]
        bounds = self._bounds(candidates[0].model, len(candidates), keep=False)
        home = _home(bounds, request.prompt_bytes, candidates)
        return [Offer(home, "bucket"), *(Offer(worker, "other bucket") for worker in by_load if worker is not home)]

    def _far_apart(self, candidates: Sequence[WorkerView]) -> bool:
        loads = [worker.load.requests for worker in candidates]
        most, least = max(loads), min(loads)
        return most - least > self._abs_threshold and most > self._rel_threshold * least

    def _bounds(self, model: str, buckets: int, *, keep: bool) -> list[int]:
        """Upper bounds of all buckets but the last, in bytes."""
        now_s = self._clock.now_s()
        made_s, bounds = self._cuts.get((model, buckets), (float("-inf"), []))
        if now_s - made_s < RECUT_S:
            return bounds
        bounds = cut(self._lengths.get(model, ()), buckets)
        if keep:
            self._cuts = {key: value for key, value in self._cuts.items() if key[0] != model}
            self._cuts[model, buckets] = now_s, bounds
        return bounds


def _home(bounds: Sequence[int], length: int, candidates: Sequence[WorkerView]) -> WorkerView:
    """The bucket's worker; a length so common that it fills several buckets goes to the least loaded of those."""
    first, last = bisect_left(bounds, length), bisect_right(bounds, length)
    return min(candidates[first : last + 1], key=queue_length)


def cut(lengths: Sequence[int], buckets: int) -> list[int]:
    """Bounds that give each bucket about the same number of bytes; even ones while nothing is known."""
    total = sum(lengths)
    if not total:
        return [FIRST_SPAN_BYTES * number // buckets for number in range(1, buckets)]
    bounds: list[int] = []
    below = 0
    for length in sorted(lengths):
        below += length
        while len(bounds) < buckets - 1 and below >= total * (len(bounds) + 1) / buckets:
            bounds.append(length)
    return bounds
