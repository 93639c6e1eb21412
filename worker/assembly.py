"""Puts a scheduler together: runner, clock, seeds. The scheduler process and the offline engine start here."""

from __future__ import annotations

import random
from collections.abc import Callable

from common.clock import MonotonicClock
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.ipc.messages import SchedulerMessage
from worker.scheduler.core import Scheduler

_SEED_BITS = 63


def build_scheduler(settings: WorkerSettings, emit: Callable[[SchedulerMessage], None]) -> Scheduler:
    """Load the model and give it a scheduler that sends its news to `emit`. Raises UserError."""
    seeds = random.Random(settings.random_seed)
    return Scheduler(settings, create_runner(settings), MonotonicClock(), emit, lambda: seeds.getrandbits(_SEED_BITS))
