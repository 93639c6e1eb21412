"""In-batch prefix grouping: of requests that share a start nobody has cached yet, one goes ahead."""

from __future__ import annotations

from collections.abc import Iterable

from worker.scheduler.constants import IN_BATCH_CHECK_TOKENS, IN_BATCH_SHARED_TOKENS
from worker.scheduler.request import Request
from worker.token_ids import TOKEN_BYTES


class ColdStarts:
    """The prompt starts that one scheduling pass computes or will compute, and who does it.

    Requests are shown to it in queue order. One follows if a leader computes at least IN_BATCH_SHARED_TOKENS tokens
    more of its prompt than are cached now: it had better wait until they are.
    """

    def __init__(self, page_size: int, starting: Iterable[Request]) -> None:
        self._head_bytes = -(-IN_BATCH_SHARED_TOKENS // page_size) * page_size * TOKEN_BYTES
        self._leaders: dict[tuple[str | None, bytes], Request] = {}
        for request in starting:
            self._leaders[self._head(request)] = request

    def lead(self, request: Request) -> None:
        """`request` goes ahead whatever it shares."""
        self._leaders.setdefault(self._head(request), request)

    def follows(self, request: Request, matched_tokens: int) -> bool:
        """Whether a request with so many cached tokens should wait for a leader. If not and it is cold, it leads."""
        if len(request.fill_key) < self._head_bytes:
            return False
        head = self._head(request)
        leader = self._leaders.get(head)
        if leader is None:
            if matched_tokens <= IN_BATCH_CHECK_TOKENS:
                self._leaders[head] = request
            return False
        shared_bytes = (matched_tokens + IN_BATCH_SHARED_TOKENS) * TOKEN_BYTES
        key = request.fill_key
        return len(key) >= shared_bytes and leader.fill_key.startswith(key[:shared_bytes])

    def _head(self, request: Request) -> tuple[str | None, bytes]:
        """Two requests share IN_BATCH_SHARED_TOKENS tokens, in whole pages, exactly if their heads are equal."""
        if request.head is None:  # kept, and its hash with it: lpm asks for every waiting request in every step
            request.head = (request.namespace, request.fill_key[: self._head_bytes])
        return request.head
