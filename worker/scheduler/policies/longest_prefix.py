"""lpm: most cached tokens first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worker.cache.prefix import PrefixCache
from worker.scheduler.constants import MATCHED_MAX_WAITING
from worker.scheduler.policies.base import split_overdue
from worker.scheduler.policies.cold_starts import ColdStarts
from worker.scheduler.queue import Lane
from worker.scheduler.request import Request


class LongestPrefixMatch:
    """Most cached tokens first; followers of cold starts last.

    With more than MATCHED_MAX_WAITING waiting it is arrival order, followers still last.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def order(self, lane: Lane, starting: Iterable[Request]) -> Iterable[Request]:
        starts = ColdStarts(self._cache.page_size, starting)
        if len(lane) > MATCHED_MAX_WAITING:
            return self._by_arrival(lane, starts)
        return self._by_match(lane, starts)

    def _by_match(self, lane: Lane, starts: ColdStarts) -> list[Request]:
        overdue, others = split_overdue(lane)
        for request in overdue:
            starts.lead(request)
        ahead: list[tuple[int, Request]] = []
        followers: list[Request] = []
        lookup, follows = self._cache.lookup, starts.follows
        for request in others:
            request.lookup = found = lookup(request.fill_key, request.namespace, request.lookup)
            matched = found.tokens
            if follows(request, matched):
                followers.append(request)
            else:
                ahead.append((-matched, request))
        ahead.sort(key=_first)  # stable: lane order among equals
        return [*overdue, *(request for _, request in ahead), *followers]

    def _by_arrival(self, lane: Lane, starts: ColdStarts) -> Iterator[Request]:
        """Matches only what is looked at."""
        followers = []
        for request in lane:
            if lane.is_overdue(request):
                starts.lead(request)
            elif starts.follows(request, self._matched_tokens(request)):
                followers.append(request)
                continue
            yield request
        yield from followers

    def _matched_tokens(self, request: Request) -> int:
        lookup = self._cache.lookup(request.fill_key, request.namespace, request.lookup)
        request.lookup = lookup
        return lookup.tokens


def _first(pair: tuple[int, Request]) -> int:
    return pair[0]
