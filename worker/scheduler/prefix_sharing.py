"""In-batch prefix sharing: a prompt start that several requests wait with is computed once, by the first of them."""

from __future__ import annotations

from worker.cache.prefix import PrefixCache
from worker.scheduler.constants import MAX_HELD
from worker.scheduler.request import Request
from worker.token_ids import TOKEN_BYTES

# Where uncached work begins: namespace, cached tokens before it, and the first tokens of it.
_Start = tuple[str | None, int, bytes]


class PrefixSharing:
    """The prompts that one admission pass computes, or that are still in flight, and who had better wait for them.

    A waiting request is held back if one of them fills, with the tokens it is about to compute, at least
    `shared_tokens`, whole pages, that follow the request's own cached part. As soon as their results are handled, these
    pages are in the cache; nobody is held for longer than that, so a hold lasts one step, or two where steps overlap.
    """

    def __init__(self, cache: PrefixCache, shared_tokens: int) -> None:
        self._cache = cache
        self._page_bytes = cache.page_size * TOKEN_BYTES
        self._worth_bytes = shared_tokens * TOKEN_BYTES
        self._leaders: dict[_Start, list[bytes]] = {}
        self.num_held = 0

    @property
    def holds_enough(self) -> bool:
        """So many are held that looking at more costs more than it brings."""
        return self.num_held >= MAX_HELD

    def lead(self, request: Request, end_tokens: int) -> None:
        """The first `end_tokens` tokens of `request` are computed, or are about to be."""
        if not self._cache.enabled:
            return
        start = self._cached_tokens(request)
        filled = request.fill_key[: end_tokens * TOKEN_BYTES // self._page_bytes * self._page_bytes]
        if start * TOKEN_BYTES + self._worth_bytes <= len(filled):
            self._leaders.setdefault(self._start(request, start), []).append(filled)

    def holds(self, request: Request) -> bool:
        """Whether a waiting request should wait for one of the others."""
        if not self._leaders:
            return False
        cached = self._cached_tokens(request)
        filled_by = self._leaders.get(self._start(request, cached))
        end = cached * TOKEN_BYTES + self._worth_bytes
        if filled_by is None or end > len(request.matchable_key):
            return False
        shared = request.fill_key[:end]
        held = any(filled.startswith(shared) for filled in filled_by)
        self.num_held += held
        return held

    def _cached_tokens(self, request: Request) -> int:
        request.lookup = self._cache.lookup(request.fill_key, request.namespace, request.lookup)
        return request.lookup.tokens

    def _start(self, request: Request, cached_tokens: int) -> _Start:
        first = cached_tokens * TOKEN_BYTES
        return request.namespace, cached_tokens, request.fill_key[first : first + self._worth_bytes]
