"""In which order waiting requests are looked at for admission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np

from worker.cache.prefix import TOKEN_BYTES, PrefixCache
from worker.scheduler.constants import (
    IN_BATCH_CHECK_TOKENS,
    IN_BATCH_SHARED_TOKENS,
    LPM_MAX_OVERTAKEN,
    LPM_MAX_WAITING,
)
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.request import Request

Heads = dict[tuple[str | None, bytes], Request]  # first tokens -> who computes them now or goes ahead

_FOLLOWS = (2, 0)  # rank of a request that can take over much of what one ahead of it computes


class QueuePolicy(Protocol):
    """Orders the waiting queue; strict: admission stops at the first request that does not fit."""

    def order(self, waiting: WaitingQueue, starting: Iterable[Request]) -> Iterable[Request]:
        """All waiting requests, next first. `starting` are those whose prompt is being computed, so not yet cached."""
        ...

    def on_admitted(self, admitted: Sequence[Request], waiting: WaitingQueue) -> None:
        """`admitted` have left the queue in this pass."""
        ...


class FirstComeFirstServed:
    """Arrival order."""

    def order(self, waiting: WaitingQueue, starting: Iterable[Request]) -> Iterable[Request]:
        return waiting

    def on_admitted(self, admitted: Sequence[Request], waiting: WaitingQueue) -> None:
        pass


class LongestPrefixMatch:
    """Most cached tokens first.

    Of cold requests that start alike, one goes ahead and the others follow once its prompt is cached, as do those that
    share much more with a prompt being computed than is cached by now. Retracted
    requests and those passed by LPM_MAX_OVERTAKEN later arrivals go before all others. With more than LPM_MAX_WAITING
    waiting it is arrival order, followers of cold starts still excepted.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        page = cache.page_size
        self._shared_bytes = -(-IN_BATCH_SHARED_TOKENS // page) * page * TOKEN_BYTES

    def order(self, waiting: WaitingQueue, starting: Iterable[Request]) -> Iterable[Request]:
        heads = {self._head(request): request for request in starting}
        if len(waiting) > LPM_MAX_WAITING:
            return self._by_arrival(waiting, heads)
        ranked = [(self._rank(request, heads), request) for request in waiting]
        ranked.sort(key=lambda pair: pair[0])  # stable: queue order among equals
        return [request for _, request in ranked]

    def _by_arrival(self, waiting: WaitingQueue, heads: Heads) -> Iterator[Request]:
        """Arrival order, but cold requests that start like one ahead come last. Matches only what is looked at."""
        followers = []
        for request in waiting:
            if self._rank(request, heads) == _FOLLOWS:
                followers.append(request)
            else:
                yield request
        yield from followers

    def on_admitted(self, admitted: Sequence[Request], waiting: WaitingQueue) -> None:
        if len(waiting) > LPM_MAX_WAITING:
            return
        for request in waiting:
            request.overtaken += sum(request.arrival_index < other.arrival_index for other in admitted)

    def _rank(self, request: Request, heads: Heads) -> tuple[int, int]:
        if request.num_retractions or request.overtaken >= LPM_MAX_OVERTAKEN:
            heads.setdefault(self._head(request), request)
            return (0, 0)
        matched = self._match_length(request)
        if len(request.fill_key) >= self._shared_bytes:
            head = self._head(request)
            leader = heads.get(head)
            if leader is not None and self._shared_tokens(request, leader) >= matched + IN_BATCH_SHARED_TOKENS:
                return _FOLLOWS
            if matched <= IN_BATCH_CHECK_TOKENS:
                heads.setdefault(head, request)
        return (1, -matched)

    def _shared_tokens(self, request: Request, leader: Request) -> int:
        """Tokens the two have in common from the start."""
        ours, theirs = (np.frombuffer(r.fill_key, np.int32) for r in (request, leader))
        length = min(len(ours), len(theirs))
        differs = ours[:length] != theirs[:length]
        return int(differs.argmax()) if differs.any() else length

    def _head(self, request: Request) -> tuple[str | None, bytes]:
        """Two requests share IN_BATCH_SHARED_TOKENS tokens, in whole pages, exactly if their heads are equal."""
        return (request.namespace, request.fill_key[: self._shared_bytes])

    def _match_length(self, request: Request) -> int:
        if request.match_version != self._cache.version:
            request.match_tokens = self._cache.match_length(request.fill_key, request.namespace)
            request.match_version = self._cache.version
        return request.match_tokens


def make_policy(name: Literal["fcfs", "lpm"], cache: PrefixCache) -> QueuePolicy:
    """The policy of a name. Without a prefix cache there is nothing to match, so lpm is fcfs."""
    return LongestPrefixMatch(cache) if name == "lpm" and cache.enabled else FirstComeFirstServed()
