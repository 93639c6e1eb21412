"""Puts a scheduler together: runner, clock, seeds. The scheduler process and the offline engine start here."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.engine.sim.clock import DeviceClock, SleepingClock
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
    try:
        yield Scheduler(settings, runner, clock, emit, lambda: seeds.getrandbits(_SEED_BITS))
    finally:
        runner.close()
