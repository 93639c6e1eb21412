"""A fleet in virtual time: any policy over simulated workers, with bounds from policies that know what no router can.

No sockets, no sleeping: a thousand requests take about a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.router_model import WorkerModel
from benchmarks.router_workloads import ANSWER_CHARS, Session, Workload
from common.clock import Clock
from gateway.fleet.registry import Registry, Snapshot
from gateway.fleet.worker import Identity, WorkerView
from gateway.routing.policy import Choice, Policy, RouteRequest, StatelessPolicy
from gateway.routing.prefix_index import chain
from gateway.routing.router import Router
from worker.engine.sim.timeline import Timeline


@dataclass
class Result:
    """What a run showed. Times in seconds, tokens of prompts."""

    ttft_s: list[float] = field(default_factory=list)
    workers: list[WorkerModel] = field(default_factory=list)
    error_tokens: int = 0  # between predicted and true cached tokens, summed
    endless: WorkerModel = field(default_factory=lambda: WorkerModel(None))  # one worker that saw everything
    end_s: float = 0.0

    @property
    def bound(self) -> float:
        """The hit rate of one worker with endless memory that saw the same requests in the same order."""
        return self.endless.cached_tokens / self.endless.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(worker.prompt_tokens for worker in self.workers)

    @property
    def hit_rate(self) -> float:
        return sum(worker.cached_tokens for worker in self.workers) / self.prompt_tokens

    @property
    def error(self) -> float:
        """Of the predictions, as a share of the prompts."""
        return self.error_tokens / self.prompt_tokens

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttft_s) / len(self.ttft_s)

    def ttft_quantile_s(self, q: float) -> float:
        return sorted(self.ttft_s)[min(int(q * len(self.ttft_s)), len(self.ttft_s) - 1)]

    @property
    def spread(self) -> float:
        """The most requests of a worker over the mean."""
        return _spread([worker.requests for worker in self.workers])

    @property
    def work_spread(self) -> float:
        """The most prefill of a worker over the mean."""
        return _spread([worker.prefilled_tokens for worker in self.workers])


def _spread(amounts: Sequence[int]) -> float:
    return max(amounts) * len(amounts) / max(sum(amounts), 1)


class Simulation:
    """Runs sessions through a policy. `report_capacity`: workers tell how much they can hold; `report_usage`: answers
    tell their usage."""

    def __init__(
        self,
        make_policy: Callable[[Clock, Simulation], Policy],
        workers: Sequence[WorkerModel],
        *,
        report_capacity: bool = True,
        report_usage: bool = True,
    ) -> None:
        self.timeline = Timeline()
        self.registry = Registry()
        first = workers[0]
        self.result = Result(
            endless=WorkerModel(None, block_chars=first.block_chars, block_tokens=first.block_tokens, speed=first.speed)
        )
        self.models: dict[str, WorkerModel] = {}
        self._report_capacity = report_capacity
        self._report_usage = report_usage
        for worker in workers:
            self.add_worker(worker)
        self.policy = make_policy(self.timeline.clock, self)
        self.router = Router(self.registry, self.policy)

    def add_worker(self, worker: WorkerModel) -> None:
        """One more, ready at once."""
        url = f"http://worker-{len(self.models)}:80"
        capacity = worker.capacity_tokens if self._report_capacity else 0
        self.models[url] = worker
        self.result.workers.append(worker)
        self.registry.add(url, source="test", identity=Identity(model="m", max_total_tokens=capacity))
        self.registry.ready(url)

    def run(self, workload: Workload) -> Result:
        """Until every answer has ended."""
        for number, session in enumerate(workload.sessions):
            self.timeline.at(session.arrival_s, _Talk(self, session, number).turn)
        self.timeline.run()
        self.result.end_s = self.timeline.clock.now_s()
        return self.result


class _Talk:
    """One session under way."""

    def __init__(self, simulation: Simulation, session: Session, number: int) -> None:
        self._simulation = simulation
        self._turns = list(session.turns)
        self._continues = len(session.turns) > 1
        self._text = session.system
        self._rng = random.Random(number)

    def turn(self) -> None:
        simulation, turn = self._simulation, self._turns.pop(0)
        self._text += turn.text
        text, timeline, clock = self._text, simulation.timeline, simulation.timeline.clock
        now_s = clock.now_s()
        raw = text.encode()
        choice = simulation.router.route(RouteRequest(model="m", text=raw, prompt_bytes=len(raw), stream=True))
        worker = simulation.models[choice.worker.url]
        ticket = choice.worker.load.begin(choice.uncached_tokens, None)
        done_s, tokens, cached = worker.prefill(text, now_s)
        simulation.result.endless.prefill(text, now_s)
        simulation.result.error_tokens += abs(choice.cached_tokens - cached)

        def first_token() -> None:
            ticket.prefilled()
            worker.active += 1
            simulation.policy.started(choice, clock.now_s() - now_s)
            simulation.result.ttft_s.append(clock.now_s() - now_s)
            timeline.at(clock.now_s() + turn.answer_tokens * worker.token_s, last_token)

        def last_token() -> None:
            ticket.end()
            worker.active -= 1
            if simulation._report_usage:
                simulation.policy.served(choice, tokens, cached, turn.answer_tokens)
            if self._continues:
                self._text += self._rng.randbytes(ANSWER_CHARS // 2).hex()
                for model in (worker, simulation.result.endless):
                    model.answered(self._text)
            if self._turns:
                timeline.at(clock.now_s() + turn.pause_s, self.turn)

        timeline.at(done_s, first_token)


class LoadBoundedOracle(StatelessPolicy):
    """Knows every cache: the longest true prefix among workers whose prefill so far is near the mean.

    Near: at most `slack` times the mean and `free_tokens` more. No router can know this; its hit rate is the yardstick.
    """

    def __init__(self, simulation: Simulation, *, slack: float = 1.1, free_tokens: int = 20_000) -> None:
        self._models = simulation.models
        self._slack = slack
        self._free_tokens = free_tokens

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        models = [self._models[worker.url] for worker in candidates]
        hashes = chain_of(models[0], request)
        limit = self._slack * sum(model.prefilled_tokens for model in models) / len(models) + self._free_tokens

        def worth(position: int) -> tuple[bool, int, int]:
            model = models[position]
            return model.prefilled_tokens <= limit, model.cache.matched(hashes), -model.prefilled_tokens

        return Choice(candidates[max(range(len(models)), key=worth)], "oracle")


class FirstOwnerTree(StatelessPolicy):
    """The published rule of SGLang's router, for comparison: a prefix belongs to the worker that first had it.

    More than 0.3 of the prompt matched: its first owner, else the fewest in flight; all go to the fewest in flight
    while the most exceed the fewest by more than 64 and by more than half.
    """

    def __init__(self) -> None:
        self._owners: dict[int, WorkerView] = {}

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        hashes = chain(request.text, block_bytes=16)
        known = 0
        while known < len(hashes) and hashes[known] in self._owners:
            known += 1
        loads = [worker.load.inflight for worker in candidates]
        worker = min(candidates, key=lambda worker: (worker.load.inflight, worker.load.sent_total))
        imbalanced = max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)
        if not imbalanced and known > 0.3 * len(hashes):
            worker = self._owners[hashes[known - 1]]
        for block in hashes[known:]:
            self._owners[block] = worker
        return Choice(worker, "first_owner")


def chain_of(model: WorkerModel, request: RouteRequest) -> tuple[int, ...]:
    """The request's blocks as the simulated workers see them."""
    return model.hashes(request.text.decode())
