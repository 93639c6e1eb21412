"""CPU time the scheduler's loop takes for a step, without any model: `python -m benchmarks.scheduler_step`.

512 requests run and 2,000 (also: 100) wait, while about four a step finish, are replaced and evict cached prefixes. A
step is all that the process does for it: messages read from the socket and decoded, queue ordered, requests admitted,
step planned, results handled, news encoded and sent. What the frontend does meanwhile is not counted.

The cases (policy, waiting, pool) take turns, a round of steps each, so that all of them meet the machine's good and bad
moments. Printed for each, in milliseconds of CPU of the scheduler's thread a step: `least`, the lowest of the rounds'
medians, is what the program takes on a core that it shares with nobody; `p50`, `p99` and `mean` are over all steps and
grow with whatever else runs, because hyperthreads share a core. The last line says how much did.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import psutil

from common.clock import MonotonicClock
from common.errors import UserError
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, NewWeights, RunnerInfo, StepResult
from worker.ipc.channel import FrontendChannel, SchedulerChannel
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput
from worker.launch.scheduler_process import GC_THRESHOLD
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

Policy = Literal["fcfs", "lpm"]

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

    def load_weights(self, model_path: str) -> NewWeights:
        raise UserError("There is no model.")

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
        yield GenerateRequest(rid=f"{number:032x}", input_ids=rng.choice(heads) + own, sampling=sampling)


class Load:
    """A scheduler behind its real sockets. Keeps `num_waiting` requests waiting."""

    def __init__(self, settings: WorkerSettings, runner: InstantRunner, num_waiting: int, prompt_tokens: int) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._frontend = FrontendChannel()
        self._channel = SchedulerChannel(self._frontend.directory)
        self._news = self._frontend.messages()
        self.scheduler = Scheduler(settings, runner, MonotonicClock(), self._send, lambda: 0)
        self._unread = 0
        self._requests = arrivals(prompt_tokens)
        self._live = 0
        self._wanted = num_waiting + RUNNING

    def run(self, steps: int) -> list[float]:
        """Milliseconds of CPU of each step."""
        times = []
        for _ in range(steps):
            while self._live < self._wanted:
                self._frontend.send(next(self._requests))
                self._live += 1
            start = time.thread_time()
            for message in self._channel.drain():
                self.scheduler.handle(message)
            worked = self.scheduler.step()
            times.append((time.thread_time() - start) * 1e3)
            while self._unread:
                self._read()
            if not worked:
                self._channel.wait(1.0)
        return times

    def _send(self, message: SchedulerMessage) -> None:
        self._channel.send(message)
        self._unread += 1

    def _read(self) -> None:
        """What the frontend does meanwhile is not counted."""
        self._unread -= 1
        message = self._loop.run_until_complete(asyncio.wait_for(anext(self._news), 10))
        assert isinstance(message, StepOutput)
        self._live -= sum(delta.finish is not None for delta in message.deltas)

    def close(self) -> None:
        self._loop.run_until_complete(self._news.aclose())  # type: ignore[attr-defined]
        self._channel.close()
        self._frontend.close()
        self._loop.close()


@dataclass
class Case:
    """One line of the table."""

    policy: Policy
    load: Load
    rounds: list[list[float]] = field(default_factory=list)  # ms of each step

    def line(self) -> str:
        report = self.load.scheduler.load_report(0)
        steps = np.concatenate(self.rounds)
        least = min(np.median(times) for times in self.rounds)
        figures = (least, *np.percentile(steps, (50, 99)), steps.mean())
        return (
            f"{self.policy:>5} {report.num_running_reqs:>8} {report.num_waiting_reqs:>8} "
            f"{report.num_evictable_tokens:>11} {report.cache_hit_rate:>8.2f} "
            + " ".join(f"{ms:>8.2f}" for ms in figures)
        )


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """All cases, with a full cache."""
    queues: tuple[tuple[Policy, int], ...] = (("fcfs", 2000), ("lpm", 2000), ("lpm", 100))
    for pool_tokens in (520_000, 800_000, 1_600_000):
        for policy, num_waiting in queues:
            settings = WorkerSettings(
                model_path="none", schedule_policy=policy, decode_log_interval=1_000_000, chunked_prefill_size=8192
            )
            runner = InstantRunner(pool_tokens // args.page_size, args.page_size, args.overlap)
            load = Load(settings, runner, num_waiting, args.prompt_tokens)
            load.run(args.warmup_steps)
            yield Case(policy, load)


def others(before: psutil._ntuples.scputimes, own_s: float) -> str:
    """What else the machine's processors did since `before`, of which this process took `own_s`."""
    spent = [late - early for early, late in zip(before, psutil.cpu_times(), strict=True)]
    now = dict(zip(before._fields, spent, strict=True))
    total = sum(spent)
    busy = total - now["idle"] - now["iowait"] - now["steal"] - own_s
    return (
        f"meanwhile other processes took {busy / total:.0%} of the processors, other guests {now['steal'] / total:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60, help="of a round")
    parser.add_argument("--warmup-steps", type=int, default=600)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    gc.set_threshold(GC_THRESHOLD)
    table = list(cases(args))
    gc.collect()
    gc.freeze()
    before, own_s = psutil.cpu_times(), time.process_time()
    for _ in range(args.rounds):
        for case in table:
            case.rounds.append(case.load.run(args.steps))
    print(f"page size {args.page_size}, prompts of {args.prompt_tokens} tokens, overlap {args.overlap}")
    widths = {"": 5, "running": 8, "waiting": 8, "evictable": 11, "hit rate": 8}
    heads = widths | dict.fromkeys(("least ms", "p50 ms", "p99 ms", "mean ms"), 8)
    print(" ".join(f"{name:>{width}}" for name, width in heads.items()))
    for case in table:
        print(case.line())
        case.load.close()
    print(others(before, time.process_time() - own_s))


if __name__ == "__main__":
    main()
