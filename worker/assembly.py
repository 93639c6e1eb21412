"""Puts a scheduler together: runner, clock, seeds. The scheduler process and the offline engine start here."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from worker.config import WorkerSettings
from worker.engine.batch import RunnerInfo
from worker.engine.factory import create_runner
from worker.engine.profiling import Profiler
from worker.engine.sim.clock import DeviceClock, SleepingClock
from worker.grammar.base import GrammarCompiler
from worker.ipc.messages import SchedulerMessage
from worker.scheduler.core import Scheduler

_SEED_BITS = 63


@contextmanager
def running_scheduler(
    settings: WorkerSettings, emit: Callable[[SchedulerMessage], None], clock: DeviceClock | None = None
) -> Iterator[Scheduler]:
    """Load the model and give it a scheduler that sends its news to `emit`; frees all at the end. Raises UserError.

    `clock` other than the real one is for simulated devices only.
    """
    clock = clock or SleepingClock()
    runner = create_runner(settings, clock)
    seeds = random.Random(settings.random_seed)
    grammars = _grammar_compiler(settings, runner.info)
    try:
        profiler = _profiler(runner.info)
        yield Scheduler(settings, runner, clock, emit, lambda: seeds.getrandbits(_SEED_BITS), grammars, profiler)
    finally:
        if grammars is not None:
            grammars.close()
        runner.close()


def _profiler(info: RunnerInfo) -> Profiler | None:
    if info.device == "sim":
        return None
    from worker.engine.torch_profiler import TorchProfiler  # imports torch, which simulated replicas do without

    return TorchProfiler(info.device)


def _grammar_compiler(settings: WorkerSettings, info: RunnerInfo) -> GrammarCompiler | None:
    if settings.grammar_backend == "none" or settings.skip_tokenizer_init or not info.has_logits:
        return None
    from worker.grammar.compiler import XGrammarCompiler  # imports torch, which simulated replicas do without

    free = not settings.constrained_json_disable_any_whitespace
    return XGrammarCompiler(settings.tokenizer_path or settings.model_path, info, free_whitespace=free)
