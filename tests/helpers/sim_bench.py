"""A real scheduler over the simulated accelerator in virtual time, and what its requests experienced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np

from benchmarks.offline import llama_3_8b
from worker.config import WorkerSettings
from worker.engine.sim.profile import SimProfile, load_profile
from worker.ipc.messages import FinishReason, GenerateRequest, StepOutput
from worker.models.config import ModelConfig
from worker.sampling_params import SamplingParams
from worker.simulated import simulated

EOS = 2
VOCAB_SIZE = 32_000


@cache
def llama_8b() -> ModelConfig:
    """The benchmark's model with a longer context and a smaller vocabulary."""
    return llama_3_8b(vocab_size=VOCAB_SIZE, eos_token_id=EOS, max_position_embeddings=32_768)


def h200(**changes: Any) -> SimProfile:
    """The packaged profile, with changes."""
    return msgspec.structs.replace(load_profile("h200-llama3-8b"), **changes)


def random_prompt(seed: int, num_tokens: int) -> list[int]:
    """Token ids that share nothing with those of other seeds."""
    return np.random.default_rng((seed, num_tokens)).integers(EOS + 1, VOCAB_SIZE, num_tokens).tolist()


@dataclass
class Served:
    """One request, by the virtual clock."""

    arrival_s: float
    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)  # of news, one or more tokens each
    cached_tokens: int = 0
    finish: FinishReason | None = None

    @property
    def first_token_s(self) -> float:
        return self.times_s[0] - self.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        """Between two tokens."""
        return np.diff(self.times_s).tolist()


@dataclass(frozen=True, slots=True)
class Moment:
    """What the load report said after a step."""

    now_s: float
    running: int
    waiting: int
    usage: float


class SimBench:
    """One replica. `settings` are the worker's."""

    def __init__(self, profile: SimProfile | None = None, **settings: Any) -> None:
        self.settings = WorkerSettings(model_path="none", device="sim", **settings)
        ids = np.arange(EOS + 1, VOCAB_SIZE, dtype=np.int32)
        profile = profile or h200()
        self.clock, self.runner, self.scheduler = simulated(self.settings, llama_8b(), profile, ids, self._hear)
        self.served: dict[str, Served] = {}
        self.moments: list[Moment] = []
        self._num_live = 0

    def submit(self, prompt: Sequence[int], max_new_tokens: int = 128, **sampling: Any) -> Served:
        """Hand a request over now."""
        rid = f"r{len(self.served)}"
        served = self.served[rid] = Served(self.clock.now_s())
        self._num_live += 1
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, **sampling)
        self.scheduler.handle(GenerateRequest(rid=rid, input_ids=list(prompt), sampling=params))
        return served

    def step(self) -> bool:
        """One step of the scheduler, and a note of its load. False when it had nothing to do."""
        worked = self.scheduler.step()
        report = self.scheduler.load_report(0)
        self.moments.append(
            Moment(self.clock.now_s(), report.num_running_reqs, report.num_waiting_reqs, report.token_usage)
        )
        return worked

    def finish(self) -> None:
        """Step until all is done and the pool is whole."""
        while self._num_live:
            self.step()
        while self.scheduler.step():
            pass
        self.scheduler.on_idle()

    def feed(self, requests: Iterable[Callable[[SimBench], Served]], *, waiting: int) -> None:
        """Keep `waiting` requests in the queue as long as there are any, then finish."""
        for submit in requests:
            submit(self)
            while self.load.num_waiting_reqs >= waiting:
                self.step()
        self.finish()

    @property
    def load(self) -> Any:
        return self.scheduler.load_report(0)

    @property
    def output_tokens(self) -> int:
        return sum(len(served.token_ids) for served in self.served.values())

    @property
    def throughput(self) -> float:
        """Output tokens a second, from start to now."""
        return self.output_tokens / self.clock.now_s()

    def queued(self) -> list[Moment]:
        """Moments at which requests waited."""
        return [moment for moment in self.moments if moment.waiting]

    def mean_usage_with_queue(self) -> float:
        """Of the KV pool, over the time in which requests waited."""
        queued = self.queued()
        weights = np.diff([moment.now_s for moment in queued])
        return float(np.average([moment.usage for moment in queued[1:]], weights=weights))

    def _hear(self, news: StepOutput) -> None:
        for rid, token in zip(news.rids, news.tokens, strict=True):
            self.served[rid].token_ids.append(token)
            self.served[rid].times_s.append(self.clock.now_s())
        for delta in news.deltas:
            served = self.served[delta.rid]
            served.token_ids += delta.token_ids
            if delta.token_ids:
                served.times_s.append(self.clock.now_s())
            if delta.finish is not None:
                served.finish, served.cached_tokens = delta.finish, delta.cached_tokens
                self._num_live -= 1
