"""lpm: most cached tokens first."""

from __future__ import annotations

from collections.abc import Iterable

from worker.cache.prefix import PrefixCache
from worker.scheduler.constants import MATCHED_MAX_WAITING
from worker.scheduler.policies.base import split_overdue
from worker.scheduler.queue import Lane
from worker.scheduler.request import Request


class LongestPrefixMatch:
    """Most cached tokens first. With more than MATCHED_MAX_WAITING waiting it is lane order."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def order(self, lane: Lane) -> Iterable[Request]:
        if len(lane) > MATCHED_MAX_WAITING:
            return lane
        overdue, others = split_overdue(lane)
        lookup = self._cache.lookup
        for request in others:
            request.lookup = lookup(request.fill_key, request.namespace, request.lookup)
        others.sort(key=_cached_tokens, reverse=True)  # stable, also in reverse: lane order among equals
        return overdue + others


def _cached_tokens(request: Request) -> int:
    assert request.lookup is not None
    return request.lookup.tokens
