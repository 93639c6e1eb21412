"""Chooses the prompts, or chunks of them, that a step computes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from common.clock import Clock
from worker.cache.pool import KvPool
from worker.cache.prefix import PrefixMatch
from worker.engine.batch import RowAdmission
from worker.scheduler.admission import PrefillBudget, Verdict
from worker.scheduler.limits import Limits
from worker.scheduler.policies.base import QueuePolicy
from worker.scheduler.preemption import Preemption
from worker.scheduler.prefix_sharing import PrefixSharing
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.request import NO_ROW, Request, RequestStatus
from worker.scheduler.reserve import OutputReserve
from worker.scheduler.rows import RequestTable
from worker.scheduler.stats import SchedulerStats


class PrefillChunk(msgspec.Struct, frozen=True, eq=False):
    """Tokens start .. start + length - 1 of a request's fill ids, computed in one step."""

    request: Request
    start: int
    length: int
    admission: RowAdmission | None  # with the first chunk

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def last(self) -> bool:
        """The prompt is complete with it, so it samples."""
        return self.end == self.request.fill_len


class PrefillScheduler:
    """Admits waiting requests within the budgets; remembers the one request whose prompt is partly computed."""

    def __init__(
        self,
        limits: Limits,
        pool: KvPool,
        table: RequestTable,
        waiting: WaitingQueue,
        policy: QueuePolicy,
        preemption: Preemption | None,
        reserve: OutputReserve,
        stats: SchedulerStats,
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._table = table
        self._waiting = waiting
        self._policy = policy
        self._preemption = preemption
        self._reserve = reserve
        self._stats = stats
        self._clock = clock
        self._chunked: Request | None = None
        self._last_chunks: list[PrefillChunk] = []
        self._full_since: tuple[int, Request | None] | None = None

    @property
    def chunked(self) -> Request | None:
        """The request in the middle of its prompt, if any."""
        chunked = self._chunked
        return chunked if chunked is not None and chunked.status is RequestStatus.PREFILLING else None

    @property
    def admits_nobody(self) -> bool:
        """Whether a pass would find nothing to compute, now and until a request arrives or leaves."""
        return self.chunked is None and (not len(self._waiting) or self._full)

    def may_preempt(self) -> bool:
        """Whether the next pass may take rows or pages from running requests."""
        first = self._waiting.first
        if self._preemption is None or first is None or self._full:
            return False
        return len(self._preemption.candidates(first)) > 0

    def schedule(self, num_decodes: int) -> list[PrefillChunk]:
        """Chunks for a step that also computes `num_decodes` decodes, whose pages are already allocated."""
        chunks: list[PrefillChunk] = []
        full = self._full or not len(self._waiting)
        if self.chunked is not None or not full:
            self._fill(self._budget(num_decodes), chunks, full)
        self._last_chunks = chunks
        return chunks

    def _fill(self, budget: PrefillBudget, chunks: list[PrefillChunk], full: bool) -> None:
        chunked = self.chunked
        if chunked is not None:
            self._continue(chunked, budget, chunks)
            full = full or not (chunks and chunks[0].last)
        if not full:
            self._admit(budget, chunks)
        if chunks:
            num_running = int(self._table.decoding.sum())  # without those who gave way to the new ones
            self._launch(chunks)
            self._count(chunks, num_running)

    def _continue(self, request: Request, budget: PrefillBudget, chunks: list[PrefillChunk]) -> None:
        start = int(self._table.seq_len[request.row])
        extend = request.fill_len - start
        tokens = budget.take_next_chunk(extend, self._reserve.charge(request, extend))
        if tokens:
            if tokens == extend:
                self._reserve.admit()
            chunks.append(PrefillChunk(request, start, tokens, None))

    def _admit(self, budget: PrefillBudget, chunks: list[PrefillChunk]) -> None:
        verdict = budget.state() if chunks else Verdict.CONTINUE  # decodes alone never keep a first prompt out
        admitted: list[Request] = []
        sharing = self._sharing(chunks)
        for request in self._ordered(sharing):
            if verdict is Verdict.OTHER or len(chunks) == self._limits.prefill_max_requests:
                break
            chunk = None
            if verdict is Verdict.CONTINUE:
                verdict, chunk = self._try_admit(request, budget)
            if verdict is Verdict.NO_TOKEN and chunk is None:
                if not self._make_room(request, budget):
                    break
                verdict, chunk = self._try_admit(request, budget)
            if chunk is not None:
                chunks.append(chunk)
                admitted.append(request)
                sharing.lead(request, chunk.end)
        for request in admitted:
            self._waiting.remove(request)
        if verdict is Verdict.NO_TOKEN and not sharing.num_held:  # who was held may need less in the next pass
            self._full_since = self._mark()

    def _ordered(self, sharing: PrefixSharing) -> Iterator[Request]:
        """The waiting requests, next first, without those who had better wait for what this pass computes."""
        for lane in self._waiting.lanes():
            for request in self._policy.order(lane):
                if sharing.holds_enough:
                    return
                if lane.is_overdue(request) or not sharing.holds(request):
                    yield request

    def _sharing(self, chunks: list[PrefillChunk]) -> PrefixSharing:
        """Knows what is computed already: by the step in flight, and by `chunks` of this one."""
        sharing, table = PrefixSharing(self._pool.cache, self._limits.shared_tokens), self._table
        for chunk in self._last_chunks:
            row = chunk.request.row
            if row != NO_ROW and table.computed_len[row] < chunk.end:
                sharing.lead(chunk.request, chunk.end)
        for chunk in chunks:
            sharing.lead(chunk.request, chunk.end)
        return sharing

    @property
    def _full(self) -> bool:
        """The last pass found no room, and nothing has changed since."""
        return self._full_since is not None and self._full_since == self._mark()

    def _mark(self) -> tuple[int, Request | None]:
        """Changes when room may have become free, or somebody waits who may take others' room."""
        return self._table.num_released, self._waiting.first if self._preemption is not None else None

    def _try_admit(self, request: Request, budget: PrefillBudget) -> tuple[Verdict, PrefillChunk | None]:
        """Give a request a row and a chunk if the budget has room for it. Also: whether anyone may follow."""
        if self._table.num_used_rows >= self._limits.max_running_requests:
            return Verdict.NO_TOKEN, None
        match, extend = self._match(request)
        output_tokens = self._reserve.charge(request, extend)
        verdict = budget.verdict(extend, output_tokens)
        if verdict is not Verdict.CONTINUE:
            return verdict, None
        self._pool.cache.lock(match.node)
        tokens = 0
        verdict = Verdict.NO_TOKEN
        if budget.fits_pool(extend, output_tokens):
            tokens = budget.take(extend, output_tokens)
            verdict = Verdict.OTHER
        if not tokens:
            self._pool.cache.unlock(match.node)
            return verdict, None
        self._enter_pool(request, match)
        outputs = tuple(request.kept_output_ids.tolist()) if request.num_kept_outputs else ()
        admission = RowAdmission(request.row, request.sampling, request.seed, outputs)
        chunk = PrefillChunk(request, request.fill_len - extend, tokens, admission)
        if chunk.last:
            self._reserve.admit()
        return (budget.state() if chunk.last else Verdict.OTHER), chunk

    def _make_room(self, request: Request, budget: PrefillBudget) -> bool:
        """Whether much less urgent requests have left so that `request` fits now."""
        if self._preemption is None or not len(self._preemption.candidates(request)):
            return False
        match, extend = self._match(request)
        self._pool.cache.lock(match.node)
        deficit = budget.deficit(extend, self._reserve.charge(request, extend))
        self._pool.cache.unlock(match.node)
        reserved = self._preemption.make_room(request, deficit)
        if reserved is None:
            return False
        budget.give_back(reserved)
        return True

    def _match(self, request: Request) -> tuple[PrefixMatch, int]:
        """What is cached of a prompt, and how many of its tokens are not. The last one is always computed."""
        match = self._pool.cache.match(request.matchable_key, request.namespace)
        return match, request.fill_len - len(match.pages) * self._pool.page_size

    def _enter_pool(self, request: Request, match: PrefixMatch) -> None:
        table, start = self._table, len(match.pages) * self._pool.page_size
        table.acquire(request, match.pages)
        request.node = match.node
        request.move_to(RequestStatus.PREFILLING)
        if not request.admitted:
            request.admitted = True
            self._pool.cache.count_hit(match.node)
            request.queue_time_s = self._clock.now_s() - request.arrival_s
            request.cached_tokens = start
            self._stats.prompt_tokens += request.prompt_len
            self._stats.cached_tokens += start

    def _launch(self, chunks: list[PrefillChunk]) -> None:
        table = self._table
        missing = [table.pages_missing(chunk.request.row, chunk.end) for chunk in chunks]
        pages = self._pool.alloc(sum(missing))
        used = 0
        for chunk, count in zip(chunks, missing, strict=True):
            row = chunk.request.row
            table.set_pages(row, int(table.num_pages[row]), pages[used : used + count])
            used += count
            table.seq_len[row] = chunk.end
            if chunk.last:
                table.decoding[row] = True
                table.num_launched[row] += 1
                chunk.request.move_to(RequestStatus.RUNNING)
            else:
                self._chunked = chunk.request

    def _count(self, chunks: list[PrefillChunk], num_running: int) -> None:
        self._stats.on_prefill(
            new_seqs=len(chunks),
            new_tokens=sum(chunk.length for chunk in chunks),
            cached_tokens=sum(chunk.start for chunk in chunks if chunk.admission is not None),
            usage=self._pool.usage,
            running=num_running,
            queued=len(self._waiting),
        )

    def _budget(self, num_decodes: int) -> PrefillBudget:
        return PrefillBudget(
            page_size=self._limits.page_size,
            available_tokens=lambda: self._pool.available_tokens,
            reserved_tokens=self._reserve.begin(),
            max_prefill_tokens=self._limits.max_prefill_tokens,
            chunk_tokens=self._limits.chunked_prefill_size,
            mixed_decode_tokens=num_decodes,
        )
