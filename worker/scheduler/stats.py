"""Counters of one scheduler, and when it logs which line of worker/log_lines.py."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from common.clock import Clock
from worker.engine.batch import RunnerInfo
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

    def on_preemption(self, num_preempted: int) -> None:
        logger.info("%s", PreemptLine(num_preempted))

    def on_idle(self) -> None:
        """Nothing runs: the next interval starts when something does."""
        self.gen_throughput = 0.0
        self._interval_start_s, self._interval_tokens = self._clock.now_s(), 0
