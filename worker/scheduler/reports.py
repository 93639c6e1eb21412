"""What a scheduler tells of itself: once when it is ready, and its load whenever it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from worker.cache.pool import KvPool
from worker.engine.batch import RunnerInfo
from worker.ipc.messages import LoadReport, SchedulerReady
from worker.scheduler.grammars import GrammarQueue
from worker.scheduler.limits import Limits
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.reserve import OutputReserve
from worker.scheduler.rows import RequestTable
from worker.scheduler.stats import SchedulerStats


def ready_message(info: RunnerInfo, limits: Limits) -> SchedulerReady:
    """What the frontend must know before it takes requests."""
    return SchedulerReady(
        vocab_size=info.vocab_size,
        context_len=limits.context_len,
        max_total_num_tokens=limits.max_total_num_tokens,
        max_req_input_len=limits.max_req_input_len,
        max_running_requests=limits.max_running_requests,
        page_size=limits.page_size,
        eos_token_ids=list(info.eos_token_ids),
        device=info.device,
        dtype=info.dtype,
        weight_bytes=info.weight_bytes,
        kv_pool_bytes=info.kv_bytes_per_token * limits.max_total_num_tokens,
        architectures=list(info.architectures),
        available_memory_bytes=info.available_memory_bytes,
        has_logits=info.has_logits,
        embedding_size=info.embedding_size,
        in_batch_shared_tokens=limits.shared_tokens,
    )


@dataclass(frozen=True, slots=True)
class LoadReporter:
    """Reads the parts of a scheduler; changes nothing."""

    limits: Limits
    pool: KvPool
    table: RequestTable
    waiting: WaitingQueue
    grammars: GrammarQueue
    reserve: OutputReserve
    stats: SchedulerStats

    def report(self, call_id: int) -> LoadReport:
        """State and counters now."""
        pool, stats = self.pool, self.stats
        return LoadReport(
            call_id=call_id,
            num_running_reqs=self.table.num_used_rows,
            num_waiting_reqs=len(self.waiting) + len(self.grammars),
            num_used_tokens=pool.used_tokens,
            num_evictable_tokens=pool.cache.evictable_tokens,
            num_free_tokens=pool.free_tokens,
            max_total_num_tokens=pool.total_tokens,
            num_waiting_tokens=self.waiting.num_prompt_tokens,
            token_usage=pool.usage,
            gen_throughput=stats.gen_throughput,
            cache_hit_rate=stats.cache_hit_rate,
            new_token_ratio=self.reserve.value,
            max_running_requests=self.limits.max_running_requests,
            prompt_tokens_total=stats.prompt_tokens,
            cached_tokens_total=stats.cached_tokens,
            generation_tokens_total=stats.generation_tokens,
            retracted_requests_total=stats.retracted_requests,
            finished_requests_total=stats.finished_requests,
            aborted_requests_total=stats.aborted_requests,
            steps_total=stats.steps,
            prefill_s_total=stats.prefill_s,
            scheduler=stats.totals(
                decode_context_tokens=int(self.table.seq_len[self.table.decoding].sum()),
                retracted_waiting=self.waiting.num_retracted,
                schedule_conservativeness=self.reserve.conservativeness,
                learns_conservativeness=self.reserve.learns,
            ),
        )
