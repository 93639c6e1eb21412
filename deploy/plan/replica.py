"""One replica in virtual time: the real scheduler on a simulated device, driven from one event to the next.

It keeps its own clock, which stands where its scheduler's loop begins its next turn. Turns in which nothing happens but
decodes of the same requests are taken together (worker/scheduler/steady.py), until a request ends or one arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.config import WorkerSettings
from worker.engine.sim.profile import SimProfile
from worker.ipc.messages import GenerateRequest, StepOutput, TokenDelta
from worker.models.config import ModelConfig
from worker.simulated import simulated

ANSWER_TOKEN = 0  # what all answers are made of
_LEAST_RUN = 2  # turns that are worth taking together


@dataclass(slots=True)
class _Run:
    """Turns that will be taken together, as many as come before something else happens. `done_s`: when the step in
    flight is done, and those launched in each turn; a turn ends with the step in flight when it begins."""

    done_s: npt.NDArray[np.float64]
    turns: int

    @property
    def end_s(self) -> float:
        return float(self.done_s[self.turns - 1])

    def cut(self, now_s: float) -> None:
        """The turn under way at that time is the last one."""
        self.turns = min(self.turns, int(np.searchsorted(self.done_s, now_s)) + 1)


class VirtualReplica:
    """Its owner calls `turn` when the global time has come to `wakes_s`, and never lets a request arrive in the past.

    `tell` is called during a turn with the news of requests (their first token, their end) and when it happens, which
    is at `wakes_s` after the turn. `together`: False takes every turn by itself.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        config: ModelConfig,
        profile: SimProfile,
        tell: Callable[[TokenDelta, float], None],
        *,
        together: bool = True,
    ) -> None:
        ids = np.array([ANSWER_TOKEN], np.int32)
        self._clock, self._runner, self.scheduler = simulated(settings, config, profile, ids, self._hear)
        self._tell = tell
        self._together = together
        self._inbox: list[GenerateRequest] = []
        self._run: _Run | None = None
        self._is_idle = True

    @property
    def wakes_s(self) -> float | None:
        """When its next turn begins; None: when something arrives."""
        if self._run is not None:
            return self._run.end_s
        return None if self._is_idle else self._clock.now_s()

    def submit(self, request: GenerateRequest, now_s: float) -> None:
        """A request arrives. It is looked at when the turn under way is over."""
        self._inbox.append(request)
        if self._run is not None:
            self._run.cut(now_s)
        elif self._is_idle:
            self._clock.wait_until(now_s)
            self._is_idle = False

    def turn(self) -> None:
        """What the loop of a scheduler process does in one turn, or begins to do in many."""
        if self._run is not None:
            run, self._run = self._run, None
            self._clock.wait_until(run.end_s)
            done_s = float(run.done_s[run.turns])
            self.scheduler.skip(run.turns, ANSWER_TOKEN, lambda batch: self._runner.repeat(batch, run.turns, done_s))
        if self._inbox:
            for request in self._inbox:
                self.scheduler.handle(request)
            self._inbox.clear()
        elif self._together and (steps := self.scheduler.steady_steps()) >= _LEAST_RUN:
            ends_s = self._runner.repeat_ends_s(steps)
            self._run = _Run(np.concatenate(([self._runner.busy_until_s], ends_s)), steps)
            return
        if not self.scheduler.step():
            self.scheduler.on_idle()
            self._is_idle = True

    def _hear(self, news: StepOutput) -> None:
        now_s = self._clock.now_s()
        for delta in news.deltas:
            self._tell(delta, now_s)
