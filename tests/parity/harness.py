"""A scheduler over the real CPU runner in this process, with the pool size and chunking a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from common.clock import MonotonicClock
from tests.helpers.step_news import tokens_of
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, ModelRunner, NewWeights, PendingStep, RunnerInfo
from worker.ipc.messages import (
    AbortRequest,
    CallReply,
    FinishReason,
    FlushCache,
    GenerateRequest,
    SchedulerMessage,
    StepOutput,
)
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

_rids: Iterator[int] = count()


class SmallPool:
    """A runner that offers fewer of its pages."""

    def __init__(self, runner: ModelRunner, num_pages: int) -> None:
        self._runner = runner
        self.info: RunnerInfo = replace(runner.info, num_pages=num_pages)

    def launch(self, batch: ForwardBatch) -> PendingStep:
        return self._runner.launch(batch)

    def load_weights(self, model_path: str) -> NewWeights:
        return self._runner.load_weights(model_path)

    def close(self) -> None:
        """The runner belongs to the test session."""


class Harness:
    """Runs prompts greedily to a fixed length and keeps what the scheduler said about each."""

    def __init__(self, runner: ModelRunner, model_path: str, **settings: object) -> None:
        self.scheduler = Scheduler(
            WorkerSettings.model_validate({"model_path": model_path, **settings}),
            runner,
            MonotonicClock(),
            self._take,
            lambda: 0,
        )
        self.tokens: dict[str, list[int]] = {}
        self.cached_tokens: dict[str, int] = {}
        self.finishes: dict[str, FinishReason] = {}
        self.replies: list[CallReply] = []

    def submit(self, prompt: list[int], num_tokens: int) -> str:
        rid = f"r{next(_rids)}"
        sampling = SamplingParams(max_new_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self.tokens[rid] = []
        self.scheduler.handle(GenerateRequest(rid=rid, input_ids=prompt, sampling=sampling))
        return rid

    def run(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Submit all prompts at once; their answers in order."""
        rids = [self.submit(prompt, num_tokens) for prompt in prompts]
        self.drain()
        assert all(self.finishes[rid].kind == "length" for rid in rids)
        return [self.tokens[rid] for rid in rids]

    def drain(self, after_step: Callable[[], None] = lambda: None) -> None:
        """Step until nothing is left, then check the pool."""
        while not self.scheduler.idle:
            self.scheduler.step()
            after_step()
        self.scheduler.on_idle()

    def abort(self, rid: str) -> None:
        self.scheduler.handle(AbortRequest(rid=rid))

    def flush(self) -> None:
        self.scheduler.handle(FlushCache(call_id=len(self.replies)))
        assert self.replies[-1].ok

    def _take(self, message: SchedulerMessage) -> None:
        match message:
            case StepOutput():
                for rid, new in tokens_of(message):
                    self.tokens[rid] += new
                for delta in message.deltas:
                    self.cached_tokens[delta.rid] = delta.cached_tokens
                    if delta.finish is not None:
                        self.finishes[delta.rid] = delta.finish
            case CallReply():
                self.replies.append(message)
