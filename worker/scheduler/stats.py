"""Counters of one scheduler, and when it logs which line of worker/log_lines.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from common.clock import Clock
from common.metrics import Histogram
from worker.engine.batch import ForwardBatch, RunnerInfo, StepResult
from worker.ipc.messages import BATCH_SIZE_BOUNDS, STEP_TIME_BOUNDS_S, SchedulerTotals
from worker.log_lines import DecodeLine, PreemptLine, PrefillLine, RetractLine, StartupLine
from worker.scheduler.limits import Limits

logger = logging.getLogger(__name__)


def log_startup(limits: Limits, info: RunnerInfo, warnings: Iterable[str]) -> None:
    """The line of sizes that operators look for first, after warnings about them."""
    for warning in warnings:
        logger.warning("%s", warning)
    logger.info(
        "%s",
        StartupLine(
            max_total_num_tokens=limits.max_total_num_tokens,
            chunked_prefill_size=limits.chunked_prefill_size,
            max_prefill_tokens=limits.max_prefill_tokens,
            max_running_requests=limits.max_running_requests,
            context_len=limits.context_len,
            device="cpu" if info.device == "cpu" else "gpu",
            available_gb=info.available_memory_bytes / 2**30,
        ),
    )


class SchedulerStats:
    """Totals since the process started, and the throughput between two decode lines."""

    def __init__(self, clock: Clock, decode_log_interval: int) -> None:
        self._clock = clock
        self._decode_log_interval = decode_log_interval
        self._decode_steps = 0
        self._interval_start_s = clock.now_s()
        self._interval_tokens = 0
        self.gen_throughput = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.retracted_requests = 0
        self.finished_requests = 0
        self.aborted_requests = 0
        self.steps = 0
        self.prefill_s = 0.0
        self._step_times_s = Histogram(STEP_TIME_BOUNDS_S)
        self._batch_sizes = Histogram(BATCH_SIZE_BOUNDS)
        self._last_step_end_s = 0.0
        self._last_decode_in_graph = False
        self._graph_decode_steps = self._eager_decode_steps = self._prefill_steps = 0
        self._computed_prompt_tokens = 0
        self._preempted_requests = 0
        self._retracted_prompt_tokens = self._retracted_output_tokens = 0

    @property
    def cache_hit_rate(self) -> float:
        """Share of prompt tokens found cached at first admission."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def on_prefill(
        self, *, new_seqs: int, new_tokens: int, cached_tokens: int, usage: float, running: int, queued: int
    ) -> None:
        """A step with prefill chunks starts; `running` does not count the new sequences."""
        logger.info("%s", PrefillLine(new_seqs, new_tokens, cached_tokens, usage, running, queued))

    def on_tokens(self, num_tokens: int) -> None:
        """Tokens were sampled for requests."""
        self.generation_tokens += num_tokens
        self._interval_tokens += num_tokens

    def on_step(self, batch: ForwardBatch, result: StepResult, launched_s: float) -> None:
        """A step is done. Steps overlap: its time begins when it was launched or the one before was done, whichever is
        later."""
        now_s = self._clock.now_s()
        self.steps += 1
        step_s = now_s - max(launched_s, self._last_step_end_s)
        self._step_times_s.observe(step_s)
        if len(batch.prefill_ids):
            self.prefill_s += step_s
        self._batch_sizes.observe(len(batch.rows))
        self._last_step_end_s = now_s
        self._computed_prompt_tokens += len(batch.prefill_ids)
        if not batch.num_decode:
            self._prefill_steps += 1
            return
        self._last_decode_in_graph = result.cuda_graph
        if result.cuda_graph:
            self._graph_decode_steps += 1
        else:
            self._eager_decode_steps += 1

    def on_steady(self, num_rows: int, num_steps: int) -> None:
        """Steps of decodes were skipped (steady.py): only their tokens and their number are kept."""
        self.steps += num_steps
        self._decode_steps += num_steps
        self.on_tokens(num_rows * num_steps)

    def totals(
        self,
        *,
        decode_context_tokens: int,
        retracted_waiting: int,
        schedule_conservativeness: float,
        learns_conservativeness: bool,
    ) -> SchedulerTotals:
        """All that only /metrics tells."""
        return SchedulerTotals(
            preempted_requests=self._preempted_requests,
            retracted_prompt_tokens=self._retracted_prompt_tokens,
            retracted_output_tokens=self._retracted_output_tokens,
            computed_prompt_tokens=self._computed_prompt_tokens,
            graph_decode_steps=self._graph_decode_steps,
            eager_decode_steps=self._eager_decode_steps,
            prefill_steps=self._prefill_steps,
            step_time_counts=self._step_times_s.counts,
            step_time_sum_s=self._step_times_s.total,
            batch_size_counts=self._batch_sizes.counts,
            batch_size_sum=self._batch_sizes.total,
            last_decode_in_graph=self._last_decode_in_graph,
            decode_context_tokens=decode_context_tokens,
            retracted_waiting=retracted_waiting,
            cpu_s=time.process_time(),
            schedule_conservativeness=schedule_conservativeness,
            learns_conservativeness=learns_conservativeness,
        )

    def on_decode(self, *, running: int, used_tokens: int, usage: float, cuda_graph: bool, queued: int) -> None:
        """A step with decodes is done."""
        self._decode_steps += 1
        if self._decode_steps % self._decode_log_interval:
            return
        now_s = self._clock.now_s()
        elapsed_s = now_s - self._interval_start_s
        self.gen_throughput = self._interval_tokens / elapsed_s if elapsed_s > 0 else 0.0
        self._interval_start_s, self._interval_tokens = now_s, 0
        logger.info("%s", DecodeLine(running, used_tokens, usage, cuda_graph, self.gen_throughput, queued))

    def on_retraction(self, num_retracted: int, ratio_before: float, ratio_after: float) -> None:
        self.retracted_requests += num_retracted
        logger.warning("%s", RetractLine(num_retracted, ratio_before, ratio_after))

    def on_victim(self, prompt_tokens: int, output_tokens: int) -> None:
        """A request is retracted: what of it must be computed again."""
        self._retracted_prompt_tokens += prompt_tokens
        self._retracted_output_tokens += output_tokens

    def on_preemption(self, num_preempted: int) -> None:
        self._preempted_requests += num_preempted
        logger.info("%s", PreemptLine(num_preempted))

    def on_idle(self) -> None:
        """Nothing runs: the next interval starts when something does."""
        self.gen_throughput = 0.0
        self._interval_start_s, self._interval_tokens = self._clock.now_s(), 0
