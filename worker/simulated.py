"""A scheduler over the simulated accelerator, in virtual time: what plans, benchmarks and tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from worker.config import WorkerSettings
from worker.engine.batch import Int32s
from worker.engine.sim.clock import VirtualClock
from worker.engine.sim.profile import SimProfile
from worker.engine.sim.runner import SimRunner
from worker.ipc.messages import SchedulerMessage, StepOutput
from worker.models.config import ModelConfig
from worker.scheduler.core import Scheduler


class Simulated(NamedTuple):
    """Its owner calls the scheduler's `step`, which moves the clock."""

    clock: VirtualClock
    runner: SimRunner
    scheduler: Scheduler


def simulated(
    settings: WorkerSettings,
    config: ModelConfig,
    profile: SimProfile,
    answer_ids: Int32s,
    hear: Callable[[StepOutput], None],
) -> Simulated:
    """One whose time begins at 0. Answers are made of `answer_ids`, int32 [n]; `hear` is called with the news of each
    step. Raises UserError for settings that cannot work."""

    def emit(message: SchedulerMessage) -> None:
        if isinstance(message, StepOutput):  # not what its cache holds
            hear(message)

    clock = VirtualClock()
    runner = SimRunner(settings, config, profile, answer_ids, clock)
    return Simulated(clock, runner, Scheduler(settings, runner, clock, emit, lambda: 0))
