"""A fleet in virtual time, for routing policies: workers with a serial prefill and an LRU cache, sessions that arrive.

The model and the numbers are those of the session workload: see `sessions`. No sockets, no sleeping; a run of a
thousand requests takes about a second.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity, WorkerView
from gateway.routing.policy import Policy, RouteRequest
from gateway.routing.router import Router
from tests.helpers.clock import FakeClock

PREFILL_TOKENS_PER_S = 20_000
BYTES_PER_TOKEN = 4
BLOCK_BYTES = 64
ANSWER_TOKENS = 20
STEP_S = 0.01


@dataclass
class Session:
    """A conversation of one application: what is said so far, and the user's texts to come."""

    history: str
    user_texts: list[str]
    answers: list[str]
    pauses_s: list[float]


def sessions(
    rng: random.Random, *, apps: int = 24, rate_per_s: float = 8, duration_s: float = 40, prompt_chars: int = 8000
) -> list[tuple[float, Session]]:
    """(arrival, session): system prompts by Zipf weights (exponent 0.8); 2 to 5 turns, each 600 characters of user text
    and 200 of answer; exponential pauses of mean 0.5 s."""
    prompts = [words(rng, prompt_chars) for _ in range(apps)]
    weights = [1 / (rank + 1) ** 0.8 for rank in range(apps)]
    found, now_s = [], rng.expovariate(rate_per_s)
    while now_s < duration_s:
        turns = rng.randint(2, 5)
        session = Session(
            rng.choices(prompts, weights)[0],
            [words(rng, 600) for _ in range(turns)],
            [words(rng, 200) for _ in range(turns)],
            [rng.expovariate(2) for _ in range(turns)],
        )
        found.append((now_s, session))
        now_s += rng.expovariate(rate_per_s)
    return found


def words(rng: random.Random, length: int) -> str:
    """Random text."""
    return rng.randbytes(length // 2).hex()


class SimulatedWorker:
    """Serial prefill at a fixed speed of what its LRU cache lacks; then a token a step, slower the more run."""

    def __init__(self, cache_tokens: int, speed: float = PREFILL_TOKENS_PER_S) -> None:
        self.capacity = cache_tokens * BYTES_PER_TOKEN // BLOCK_BYTES
        self.speed = speed
        self.free_s = 0.0
        self.active = 0
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.busy_s = 0.0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def prefill(self, text: str, now_s: float) -> tuple[float, int]:
        """(when it is done, cached tokens)."""
        hashes = list(blocks(text))
        known = 0
        while known < len(hashes) and hashes[known] in self._blocks:
            known += 1
        self.hold(hashes)
        tokens, cached = len(text) // BYTES_PER_TOKEN, known * BLOCK_BYTES // BYTES_PER_TOKEN
        self.requests += 1
        self.prompt_tokens += tokens
        self.cached_tokens += cached
        took_s = (tokens - cached) / self.speed
        self.busy_s += took_s
        self.free_s = max(self.free_s, now_s) + took_s
        return self.free_s, cached

    def hold(self, hashes: Sequence[int]) -> None:
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)

    @property
    def token_s(self) -> float:
        return STEP_S * (1 + self.active / 64)


def blocks(text: str) -> Iterator[int]:
    """Chained hashes of whole blocks."""
    digest = 0
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest = hash((digest, text[start : start + BLOCK_BYTES]))
        yield digest


@dataclass
class Result:
    """What a run showed."""

    ttft_s: list[float] = field(default_factory=list)
    workers: list[SimulatedWorker] = field(default_factory=list)
    predicted_tokens: int = 0
    error_tokens: int = 0
    oracle: SimulatedWorker = field(default_factory=lambda: SimulatedWorker(10**9))

    @property
    def bound(self) -> float:
        """The hit rate of one worker with endless memory that saw the same requests in the same order."""
        return self.oracle.cached_tokens / self.oracle.prompt_tokens

    @property
    def hit_rate(self) -> float:
        return sum(w.cached_tokens for w in self.workers) / sum(w.prompt_tokens for w in self.workers)

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttft_s) / len(self.ttft_s)

    def ttft_quantile_s(self, q: float) -> float:
        return sorted(self.ttft_s)[min(int(q * len(self.ttft_s)), len(self.ttft_s) - 1)]

    @property
    def spread(self) -> float:
        """The most requests of a worker over the mean."""
        counts = [w.requests for w in self.workers]
        return max(counts) * len(counts) / sum(counts)

    @property
    def work_spread(self) -> float:
        """The most prefill of a worker over the mean."""
        works = [w.prompt_tokens - w.cached_tokens for w in self.workers]
        return max(works) * len(works) / sum(works)


class Simulation:
    """Runs sessions through a policy over simulated workers. `report_capacity`: workers tell how much they can hold."""

    def __init__(
        self,
        make_policy: Callable[[FakeClock], Policy],
        workers: Sequence[SimulatedWorker],
        *,
        report_capacity: bool = True,
        report_usage: bool = True,
    ) -> None:
        self.clock = FakeClock()
        self.registry = Registry()
        self.policy = make_policy(self.clock)
        self.router = Router(self.registry, self.policy)
        self.result = Result()
        self._report_capacity = report_capacity
        self._report_usage = report_usage
        self._by_url: dict[str, SimulatedWorker] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        for worker in workers:
            self.add_worker(worker)

    def add_worker(self, worker: SimulatedWorker) -> WorkerView:
        url = f"http://worker-{len(self._by_url)}:80"
        capacity = worker.capacity * BLOCK_BYTES // BYTES_PER_TOKEN if self._report_capacity else 0
        self._by_url[url] = worker
        self.result.workers.append(worker)
        view = self.registry.add(url, source="test", identity=Identity(model="m", max_total_tokens=capacity))
        self.registry.ready(url)
        return view

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, what))

    def run(self, arrivals: Sequence[tuple[float, Session]]) -> Result:
        for when_s, session in arrivals:
            self.at(when_s, lambda session=session: self._turn(session))  # type: ignore[misc]
        while self._events:
            when_s, _, what = heapq.heappop(self._events)
            self.clock.advance(when_s - self.clock.now_s())
            what()
        return self.result

    def _turn(self, session: Session) -> None:
        session.history += session.user_texts.pop(0)
        text, now_s = session.history, self.clock.now_s()
        raw = text.encode()
        choice = self.router.route(RouteRequest(model="m", text=raw, prompt_bytes=len(raw), stream=True))
        worker = self._by_url[choice.worker.url]
        ticket = choice.worker.load.begin(choice.uncached_tokens, None)
        done_s, cached = worker.prefill(text, now_s)
        self.result.oracle.prefill(text, now_s)
        self.result.predicted_tokens += choice.cached_tokens
        self.result.error_tokens += abs(choice.cached_tokens - cached)

        def first_token() -> None:
            ticket.prefilled()
            worker.active += 1
            self.policy.started(choice, self.clock.now_s() - now_s)
            self.result.ttft_s.append(self.clock.now_s() + worker.token_s - now_s)
            self.at(self.clock.now_s() + ANSWER_TOKENS * worker.token_s, last_token)

        def last_token() -> None:
            ticket.end()
            worker.active -= 1
            if self._report_usage:
                self.policy.served(choice, len(text) // BYTES_PER_TOKEN, cached)
            session.history += session.answers.pop(0)
            for cache in (worker, self.result.oracle):
                cache.hold(list(blocks(session.history)))
            if session.user_texts:
                self.at(self.clock.now_s() + session.pauses_s.pop(0), lambda: self._turn(session))

        self.at(done_s, first_token)
