"""Builds schedulers over a FakeRunner, and keeps the books of what their requests were told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers.clock import FakeClock
from tests.helpers.fake_runner import FakeRunner, expected_outputs, runner_info
from worker.cache.radix import RadixCache
from worker.config import WorkerSettings
from worker.ipc.messages import (
    AbortRequest,
    FinishReason,
    GenerateRequest,
    SchedulerMessage,
    StepOutput,
    StopMatched,
    TokenDelta,
)
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.request import Request
from worker.scheduler.token_ratio import NewTokenRatio

DRAWN_SEED = 1234567


def make_settings(**overrides: Any) -> WorkerSettings:
    """Settings of a worker whose model does not matter."""
    return WorkerSettings(model_path="fake", **overrides)


def make_request(
    prompt: Sequence[int],
    rid: str = "r",
    *,
    namespace: str | None = None,
    rank: int = 0,
    max_new_tokens: int = 16,
    **sampling: Any,
) -> Request:
    """A waiting request, as the scheduler makes it from a message."""
    return Request(
        rid=rid,
        prompt_key=np.array(prompt, np.int32).tobytes(),
        prompt_len=len(prompt),
        sampling=SamplingParams(max_new_tokens=max_new_tokens, **sampling),
        seed=0,
        namespace=namespace,
        max_new_tokens=max_new_tokens,
        arrival_s=0.0,
        rank=rank,
    )


def queue_of(*requests: Request, by_rank: bool = False) -> WaitingQueue:
    """A queue in which these requests have arrived."""
    queue = WaitingQueue(by_rank=by_rank)
    for request in requests:
        queue.append(request)
    return queue


def cache_with(*prompts: list[int]) -> RadixCache:
    """A cache of one-token pages that holds these prompts, each with pages 1, 2, ..."""
    cache = RadixCache(1)
    for prompt in prompts:
        cache.insert(np.array(prompt, np.int32).tobytes(), np.arange(1, len(prompt) + 1, dtype=np.int32), None)
    return cache


@dataclass
class Told:
    """What the frontend has been told about one request."""

    prompt: list[int]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    last: TokenDelta | None = None
    silenced: bool = False  # StopMatched was sent: nothing more may come


class SchedulerBench:
    """A scheduler, its fake runner and clock, and what came out. `runner` options go to runner_info, the rest to
    WorkerSettings."""

    def __init__(self, runner: dict[str, Any] | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.runner = FakeRunner(runner_info(**(runner or {})))
        self.settings = make_settings(**settings)
        self.messages: list[SchedulerMessage] = []
        self.told: dict[str, Told] = {}
        self.scheduler = Scheduler(self.settings, self.runner, self.clock, self._emit, lambda: DRAWN_SEED)

    def expect(self, prompt: Sequence[int], rid: str, **sampling: Any) -> SamplingParams:
        """Open the books for a request."""
        params = SamplingParams(**sampling)
        self.told[rid] = Told(list(prompt), params)
        return params

    def submit(
        self,
        prompt: Sequence[int],
        rid: str | None = None,
        extra_key: str | None = None,
        priority: int | None = None,
        **sampling: Any,
    ) -> str:
        """Send a request; returns its rid."""
        rid = rid if rid is not None else f"r{len(self.told)}"
        params = self.expect(prompt, rid, **sampling)
        self.scheduler.handle(
            GenerateRequest(rid=rid, input_ids=list(prompt), sampling=params, priority=priority, extra_key=extra_key)
        )
        return rid

    def abort(self, rid: str) -> None:
        self.scheduler.handle(AbortRequest(rid=rid))

    def stop_matched(self, rid: str, num_output_tokens: int) -> None:
        """The frontend has found a stop string in what it was told."""
        self.told[rid].silenced = True
        self.scheduler.handle(StopMatched(rid=rid, num_output_tokens=num_output_tokens))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.step()
            self.scheduler.check_pool()

    def reserve_nothing(self) -> None:
        """Admit as after very many steps without a retraction: no output is expected of running requests. Nothing where
        the reserve is learned."""
        if isinstance(self.scheduler._reserve, NewTokenRatio):
            self.scheduler._reserve.value = 0.0

    def step_until(self, reached: Callable[[], bool], max_steps: int = 1000) -> None:
        """Step until `reached`."""
        for _ in range(max_steps):
            if reached():
                return
            self.step()
        raise AssertionError(f"not reached in {max_steps} steps")

    def run_until_idle(self, max_steps: int = 10_000) -> int:
        """Step until there is nothing to do; returns the number of steps."""
        for count in range(max_steps):
            worked = self.scheduler.step()
            self.scheduler.check_pool()
            if not worked:
                self.scheduler.on_idle()
                return count
        raise AssertionError(f"still busy after {max_steps} steps")

    def audit(self) -> None:
        """Every page is in exactly one place: free, in the prefix cache, or one request's own; and a request's shared
        pages are the cache's."""
        pool, table = self.scheduler._pool, self.scheduler._table
        cached = [page for run in pool.cache.pages() for page in run.tolist()]
        free = pool._allocator.free_pages()
        own: list[int] = []
        for row in table.used_rows().tolist():
            shared = int(table.shared_pages[row])
            assert set(table.pages_of(row)[:shared].tolist()) <= set(cached)
            own += table.pages_of(row)[shared:].tolist()
        assert sorted([*cached, *free.tolist(), *own]) == list(range(1, pool.num_pages + 1))

    def expected(self, rid: str, weights: int = 0) -> list[int]:
        """The tokens `rid` would get alone, from these weights of the fake runner."""
        told = self.told[rid]
        room = min(self.runner.info.context_len, self.runner.info.num_pages * self.runner.info.page_size)
        room -= 2 + len(told.prompt)
        asked = told.sampling.max_new_tokens
        seed = DRAWN_SEED if told.sampling.seed is None else told.sampling.seed
        limit = room if asked is None else min(asked, room)
        return expected_outputs(told.prompt, told.sampling, seed, self.runner.info, limit, weights)

    def tokens(self, rid: str) -> list[int]:
        return self.told[rid].tokens

    def finish(self, rid: str) -> FinishReason:
        """Why `rid` ended; it must have."""
        reason = self.told[rid].finish
        assert reason is not None, f"{rid} has not ended"
        return reason

    def load(self) -> Any:
        return self.scheduler.load_report(0)

    def _emit(self, message: SchedulerMessage) -> None:
        self.messages.append(message)
        if isinstance(message, StepOutput):
            for rid, token in zip(message.rids, message.tokens, strict=True):
                self._book(rid, [token])
            for delta in message.deltas:
                self._tell(delta)

    def _tell(self, delta: TokenDelta) -> None:
        told = self._book(delta.rid, delta.token_ids)
        assert delta.completion_tokens == len(told.tokens)
        assert delta.prompt_tokens == len(told.prompt)
        told.finish, told.last = delta.finish, delta

    def _book(self, rid: str, tokens: list[int]) -> Told:
        told = self.told[rid]
        assert told.finish is None, f"{rid}: news after its end"
        assert not told.silenced, f"{rid}: news after StopMatched"
        told.tokens += tokens
        return told
