"""The one way out of the KV pool: for requests that finish, are aborted or are retracted."""

from __future__ import annotations

import numpy as np

from worker.cache.pool import KvPool
from worker.cache.prefix import PageIds, PrefixInsert
from worker.ipc.messages import FinishReason
from worker.scheduler.outbox import Outbox
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.request import NO_ROW, Request, RequestStatus
from worker.scheduler.reserve import OutputReserve
from worker.scheduler.rows import RequestTable
from worker.scheduler.stats import SchedulerStats


class Lifecycle:
    """Owns the live requests; ends them, or sends them back to the queue, and keeps the prefix cache up to date."""

    def __init__(
        self,
        pool: KvPool,
        table: RequestTable,
        waiting: WaitingQueue,
        outbox: Outbox,
        stats: SchedulerStats,
        reserve: OutputReserve,
    ) -> None:
        self._pool = pool
        self._table = table
        self._waiting = waiting
        self._outbox = outbox
        self._stats = stats
        self._reserve = reserve
        self._live: dict[str, Request] = {}

    @property
    def num_live(self) -> int:
        return len(self._live)

    def find(self, rid: str) -> Request | None:
        return self._live.get(rid)

    def all_live(self) -> list[Request]:
        return list(self._live.values())

    def enqueue(self, request: Request) -> None:
        """A new request waits."""
        assert request.rid not in self._live, f"{request.rid} is already live"
        self._live[request.rid] = request
        self._waiting.append(request)

    def finish(self, request: Request, num_output_tokens: int) -> None:
        """It ended normally. Prompt and its first `num_output_tokens` outputs stay cached, as far as computed."""
        request.move_to(RequestStatus.FINISHED)
        self._stats.finished_requests += 1
        self._end(request, cached_tokens=request.prompt_len + num_output_tokens)

    def abort(self, request: Request, status: int, message: str, param: str | None = None) -> None:
        """Drop it and tell the frontend. Of its pages only what was cached before stays."""
        request.move_to(RequestStatus.ABORTED)
        self._stats.aborted_requests += 1
        reason = FinishReason(kind="abort", status=status, message=message, param=param)
        self._outbox.add(request, [], self._table.num_outputs_of(request), reason)
        self._end(request, cached_tokens=0)

    def retract(self, request: Request) -> None:
        """Take its pages; it goes to the front of the queue and will compute prompt and outputs again."""
        request.move_to(RequestStatus.WAITING)
        fill_key = self._table.key_of(request, request.prompt_len + self._table.num_outputs_of(request))
        self._leave_pool(request, cached_tokens=0)
        request.refill(fill_key)
        self._waiting.push_front(request)

    def cache_prefix(self, row: int, num_tokens: int) -> None:
        """Share the first `num_tokens` computed tokens of a request that goes on. Pages that another request cached
        meanwhile replace the request's own copies."""
        table, cache = self._table, self._pool.cache
        request = table.request(row)
        shared = int(table.shared_pages[row])
        num_pages = num_tokens // self._pool.page_size
        if num_pages <= shared:
            return
        own = table.pages_of(row)
        inserted = self._insert(request, own[:num_pages], shared)
        if inserted.node is not request.node:
            cache.lock(inserted.node)
            assert request.node is not None
            cache.unlock(request.node)
            request.node = inserted.node
        if len(inserted.cached_pages):
            self._pool.free(own[shared : shared + len(inserted.cached_pages)].copy())
            table.set_pages(row, shared, inserted.cached_pages)
        table.shared_pages[row] = inserted.num_pages

    def _end(self, request: Request, cached_tokens: int) -> None:
        del self._live[request.rid]
        if request.admitted:
            self._reserve.on_end(request, self._table.num_outputs_of(request))
        if request.row == NO_ROW:
            self._waiting.remove(request)
        else:
            self._leave_pool(request, cached_tokens)

    def _leave_pool(self, request: Request, cached_tokens: int) -> None:
        """Give up row and pages. The first `cached_tokens` tokens stay in the prefix cache, as far as computed."""
        table, cache, row = self._table, self._pool.cache, request.row
        own = table.pages_of(row)
        shared = int(table.shared_pages[row])
        num_pages = min(cached_tokens, int(table.computed_len[row])) // self._pool.page_size
        if num_pages > shared:
            inserted = self._insert(request, own[:num_pages], shared)
            duplicates, taken = shared + len(inserted.cached_pages), max(inserted.num_pages, shared)
            self._pool.free(np.concatenate((own[shared:duplicates], own[taken:])))
        else:
            self._pool.free(own[shared:].copy())
        assert request.node is not None
        cache.unlock(request.node)
        request.node = None
        table.release(request)

    def _insert(self, request: Request, pages: PageIds, shared: int) -> PrefixInsert:
        """Offer the first pages of a request to the prefix cache, which has `shared` of them already."""
        key = self._table.key_of(request, len(pages) * self._pool.page_size)
        assert request.node is not None
        return self._pool.cache.insert(key, pages, request.namespace, -request.rank, (request.node, shared))
