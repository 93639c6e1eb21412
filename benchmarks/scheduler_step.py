"""CPU time the scheduler takes for a step, without any model: `python -m benchmarks.scheduler_step`.

512 requests run and 2,000 (lpm also: 100) wait, while about four a step finish, are replaced and evict cached prefixes.
Printed for each policy and cache size: milliseconds of CPU a step, taking in new messages not counted. The 10th
percentile is what a core gives that it shares with nobody.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

from common.clock import MonotonicClock
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, RunnerInfo, StepResult
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

RUNNING = 512
VOCAB = 128_000


class InstantRunner:
    """Implements ModelRunner: random tokens at once."""

    def __init__(self, num_pages: int, page_size: int, overlaps: bool) -> None:
        self._tokens = np.random.default_rng(0).integers(1, VOCAB, 1 << 20).astype(np.int32)
        self._info = RunnerInfo(
            device="cuda",
            dtype="bfloat16",
            vocab_size=VOCAB,
            context_len=32_768,
            num_pages=num_pages,
            page_size=page_size,
            max_rows=RUNNING,
            eos_token_ids=(0,),
            architectures=("Instant",),
            weight_bytes=0,
            kv_bytes_per_token=0,
            available_memory_bytes=0,
            overlaps=overlaps,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def launch(self, batch: ForwardBatch) -> InstantStep:
        start = batch.step_id * 997 % (1 << 19)
        return InstantStep(StepResult(self._tokens[start : start + len(batch.rows)]))

    def close(self) -> None:
        pass


class InstantStep:
    """Implements PendingStep."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


def arrivals(prompt_tokens: int) -> Iterator[GenerateRequest]:
    """Endless requests: one of 64 shared heads of 256 tokens, then tokens of their own; 64 to 192 outputs."""
    rng = random.Random(0)
    heads = [[rng.randrange(1, VOCAB) for _ in range(256)] for _ in range(64)]
    number = 0
    while True:
        number += 1
        own = np.random.default_rng(number).integers(1, VOCAB, prompt_tokens - 256).tolist()
        sampling = SamplingParams(max_new_tokens=rng.randrange(64, 193), ignore_eos=True)
        yield GenerateRequest(rid=f"r{number}", input_ids=rng.choice(heads) + own, sampling=sampling)


class Load:
    """Keeps `num_waiting` requests waiting."""

    def __init__(self, settings: WorkerSettings, runner: InstantRunner, num_waiting: int, prompt_tokens: int) -> None:
        self.scheduler = Scheduler(settings, runner, MonotonicClock(), self._count, lambda: 0)
        self._requests = arrivals(prompt_tokens)
        self._missing = num_waiting
        self._finished = 0

    def _count(self, message: SchedulerMessage) -> None:
        if isinstance(message, StepOutput):
            self._finished += sum(delta.finish is not None for delta in message.deltas)

    def run(self, steps: int) -> list[float]:
        """Milliseconds of CPU of each step, arrivals not counted."""
        times = []
        for _ in range(steps):
            for _ in range(self._missing):
                self.scheduler.handle(next(self._requests))
            waiting = self.scheduler.load_report(0).num_waiting_reqs
            start = time.process_time()
            self.scheduler.step()
            times.append((time.process_time() - start) * 1e3)
            self._missing = waiting - self.scheduler.load_report(0).num_waiting_reqs
        return times


def measure(policy: Literal["fcfs", "lpm"], num_waiting: int, pool_tokens: int, args: argparse.Namespace) -> None:
    """Print one line."""
    settings = WorkerSettings(
        model_path="none", schedule_policy=policy, decode_log_interval=1_000_000, chunked_prefill_size=8192
    )
    runner = InstantRunner(pool_tokens // args.page_size, args.page_size, args.overlap)
    load = Load(settings, runner, num_waiting, args.prompt_tokens)
    load.run(args.warmup_steps)
    times = load.run(args.steps)
    report = load.scheduler.load_report(0)
    print(
        f"{policy:>5} {report.num_running_reqs:>8} {report.num_waiting_reqs:>8} {report.num_evictable_tokens:>11} "
        f"{report.cache_hit_rate:>8.2f} " + " ".join(f"{ms:>9.2f}" for ms in np.percentile(times, (10, 50, 99)))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup-steps", type=int, default=600)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"page size {args.page_size}, prompts of {args.prompt_tokens} tokens, overlap {args.overlap}")
    heads = {"": 5, "running": 8, "waiting": 8, "evictable": 11, "hit rate": 8, "p10 ms": 9, "p50 ms": 9, "p99 ms": 9}
    print(" ".join(f"{name:>{width}}" for name, width in heads.items()))
    for pool_tokens in (800_000, 4_000_000):
        measure("fcfs", 2000, pool_tokens, args)
        measure("lpm", 2000, pool_tokens, args)
        measure("lpm", 100, pool_tokens, args)


if __name__ == "__main__":
    main()
