"""Profiles of the steps a replica computes: at most one at a time, for a number of steps or until it is stopped."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from worker.engine.batch import ForwardBatch, PendingStep, StepFailed, StepResult
from worker.engine.profiling import ProfileFault, Profiler
from worker.ipc.messages import CallReply, StartProfile, StopProfile

NOTHING_TO_PROFILE = "This replica's device is simulated; there is nothing to profile."
RUNS_ALREADY = "A profile is being recorded already; stop it first, or wait until its {steps} remaining steps are done."
RUNS_NOT = "No profile is being recorded."

logger = logging.getLogger(__name__)


class Profiles:
    """Stands before the runner while a profile is recorded: names each step in it, and counts them. At all other times
    `launch` is the runner's own."""

    def __init__(self, launch: Callable[[ForwardBatch], PendingStep], profiler: Profiler | None) -> None:
        self._runner_launch = launch
        self.launch = launch
        self._profiler = profiler
        self._path: Path | None = None  # of the profile that is being recorded
        self._steps_left = 0
        self._numbers = itertools.count(1)
        self._told = RUNS_NOT

    def answer(self, call: StartProfile | StopProfile) -> CallReply:
        """Begin or end a profile, between two steps."""
        try:
            return self._start(call) if isinstance(call, StartProfile) else self._stop(call)
        except ProfileFault as fault:
            return CallReply(call_id=call.call_id, ok=False, message=str(fault), status=fault.status, param=fault.param)

    def end(self, path: Path) -> None:
        """The last step that was asked for is over."""
        if self._path is path:
            try:
                self._told = f"{RUNS_NOT} The last one ended by itself and is in {self._finish()}."
            except ProfileFault as fault:
                self._told = f"{RUNS_NOT} {fault}"
            logger.info("%s", self._told)

    def abandon(self) -> None:
        """The replica ends: what is being recorded is not written, and leaves no empty file behind."""
        if self._path is not None:
            path, self._path = self._path, None
            _remove(path)
            logger.warning("The replica ends, and with it the profile that was to be written to %s.", path)

    def _start(self, asked: StartProfile) -> CallReply:
        if self._profiler is None:
            raise ProfileFault(NOTHING_TO_PROFILE)
        if self._path is not None:
            raise ProfileFault(RUNS_ALREADY.format(steps=self._steps_left))
        path = self._new_file(asked)
        try:
            self._profiler.start(asked)
        except ProfileFault:
            _remove(path)
            raise
        self._path, self._steps_left = path, asked.num_steps
        self.launch = self._launch_recorded
        logger.info("A profile of up to %d steps is being recorded, for %s.", asked.num_steps, path)
        return CallReply(call_id=asked.call_id, ok=True, message=str(path))

    def _stop(self, call: StopProfile) -> CallReply:
        if self._path is None:
            raise ProfileFault(self._told)
        self._told = RUNS_NOT
        return CallReply(call_id=call.call_id, ok=True, message=str(self._finish()))

    def _new_file(self, asked: StartProfile) -> Path:
        """An empty file, so that what is wrong with its place is known at once."""
        begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = Path(asked.output_dir) / f"{asked.prefix}-{begun}-{os.getpid()}-{next(self._numbers)}.trace.json.gz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("xb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ProfileFault(f"Nothing can be written to {asked.output_dir}: {reason}.", param="output_dir") from None
        return path

    def _finish(self) -> Path:
        assert self._path is not None and self._profiler is not None
        path, self._path = self._path, None
        self.launch = self._runner_launch
        try:
            self._profiler.stop(path)
        except ProfileFault:
            _remove(path)
            raise
        return path

    def _launch_recorded(self, batch: ForwardBatch) -> PendingStep:
        assert self._path is not None and self._profiler is not None
        self._steps_left -= 1
        last = self._path if not self._steps_left else None
        if last is not None:
            self.launch = self._runner_launch
        name = f"launch step {batch.step_id}: {batch.num_decode} decodes, {len(batch.prefill_ids)} prefill tokens"
        try:
            with self._profiler.range(name):
                pending = self._runner_launch(batch)
        except StepFailed:
            if last is not None:
                self.end(last)
            raise
        return _RecordedStep(pending, self, self._profiler, batch.step_id, last)


def _remove(path: Path) -> None:
    """A file that holds no profile, as far as the disk still lets us."""
    with suppress(OSError):
        path.unlink()


class _RecordedStep:
    """Implements PendingStep. `last`: the profile that ends with it."""

    def __init__(
        self, pending: PendingStep, profiles: Profiles, profiler: Profiler, step_id: int, last: Path | None
    ) -> None:
        self._pending = pending
        self._profiles = profiles
        self._profiler = profiler
        self._step_id = step_id
        self._last = last

    def result(self) -> StepResult:
        try:
            with self._profiler.range(f"wait for step {self._step_id}"):
                return self._pending.result()
        finally:
            if self._last is not None:
                self._profiles.end(self._last)
