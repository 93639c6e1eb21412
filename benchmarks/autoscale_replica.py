"""One replica in virtual time, light enough for days of traffic: steps shaped and priced as the real ones, no tokens.

Chunked prefill shares steps with decodes, first come first served; a step is planned while the one before runs; what a
step takes is the profile's formula (worker/engine/sim/step_time.py). Left out: the prefix cache, retraction (a request
reserves its whole answer), priorities. tests/benchmarks/test_autoscale.py holds it against the real scheduler.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.fleet.scaling import ReplicaLoad
from worker.engine.sim.profile import SimProfile
from worker.engine.sim.step_time import StepCosts, StepShape, step_time_s
from worker.scheduler.constants import GPU_CHUNK_TOKENS

TTFT_BOUNDS_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_MAX_STEPS = 64  # decodes computed at once while nothing else happens


@dataclass(slots=True, eq=False)
class Job:
    """One request. `on_first(now_s)` and `on_end(now_s)` hear when its first and its last token came."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    on_first: Callable[[float], None]
    on_end: Callable[[float], None]
    computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Chunk:
    job: Job
    tokens: int
    before: int

    @property
    def is_last(self) -> bool:
        return self.before + self.tokens == self.job.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a replica runs on: `speed` times the device of the profile."""

    costs: StepCosts
    pool_tokens: int
    max_running: int
    speed: float = 1.0
    graph_sizes: tuple[int, ...] = ()
    chunk_tokens: int = GPU_CHUNK_TOKENS

    @classmethod
    def of(cls, profile: SimProfile, *, speed: float, pool_tokens: int, max_running: int) -> Machine:
        """With graphs of SGLang's sizes, as the runner has them."""
        sizes = (1, 2, 4, 8, *range(16, 257, 8))
        return cls(
            costs=profile.costs, pool_tokens=pool_tokens, max_running=max_running, speed=speed, graph_sizes=sizes
        )


@dataclass(slots=True, eq=False)
class LightReplica:
    """Its owner calls `advance` at `due_s`, and `submit` in between; `due_s` is None while it is idle."""

    machine: Machine
    incarnation: str
    due_s: float | None = None
    _waiting: deque[Job] = field(default_factory=deque)
    _running: list[tuple[int, int, Job]] = field(default_factory=list)  # (decode at which it ends, tie, job)
    _executing: list[_Chunk] = field(default_factory=list)
    _planned: list[_Chunk] = field(default_factory=list)
    _in_prefill: int = 0  # requests planned, without their first token
    _steps: int = 0  # decodes of the step that runs
    _start_s: float = 0.0
    _step_s: float = 0.0
    _decodes: int = 0
    _context: int = 0  # KV tokens of running requests
    _reserved: int = 0  # KV tokens that admitted requests will need
    _ties: int = 0
    _waiting_tokens: int = 0
    _prompt_total: int = 0
    _prefill_total_s: float = 0.0
    _ttft_counts: list[int] = field(default_factory=lambda: [0] * (len(TTFT_BOUNDS_S) + 1))

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._waiting) + self._in_prefill + len(self._running)

    def submit(self, job: Job, now_s: float) -> None:
        """A request arrives."""
        self._waiting.append(job)
        self._waiting_tokens += job.prompt_tokens
        if self.due_s is None:
            self._planned = self._plan()
            self._launch(now_s)
        elif self._steps > 1:  # many decodes at once: stop after the one that runs
            done = int((now_s - self._start_s) / self._step_s) + 1
            if done < self._steps:
                self._steps, self.due_s = done, self._start_s + done * self._step_s

    def advance(self) -> None:
        """The step that runs is done."""
        assert self.due_s is not None
        now_s = self.due_s
        if self._executing:
            self._prefill_total_s += now_s - self._start_s
        self._decodes += self._steps
        self._context += self._steps * len(self._running)
        while self._running and self._running[0][0] <= self._decodes:
            job = heapq.heappop(self._running)[2]
            self._context -= job.prompt_tokens + job.output_tokens - 1
            self._end(job, now_s)
        for chunk in self._executing:
            if chunk.is_last:
                self._first_token(chunk.job, now_s)
        self._launch(now_s)

    def load(self) -> ReplicaLoad:
        """What GET /v1/loads would tell."""
        return ReplicaLoad(
            incarnation=self.incarnation,
            running_requests=len(self._running) + self._in_prefill,
            waiting_requests=len(self._waiting),
            waiting_tokens=self._waiting_tokens,
            used_tokens=self._context,
            max_total_tokens=self.machine.pool_tokens,
            max_running_requests=self.machine.max_running,
            token_usage=self._context / self.machine.pool_tokens,
            prompt_tokens_total=self._prompt_total,
            prefill_s_total=self._prefill_total_s,
            ttft_bounds_s=list(TTFT_BOUNDS_S),
            ttft_counts=list(self._ttft_counts),
        )

    def _launch(self, now_s: float) -> None:
        """Run the planned step, and plan the one after it from who has arrived."""
        self._executing, self._planned = self._planned, self._plan()
        if not self._executing and not self._running:
            self._executing, self._planned = self._planned, self._plan()
        if not self._executing and not self._running:
            self.due_s = None
            return
        self._start_s = now_s
        self._step_s = step_time_s(self._shape(), self.machine.costs) / self.machine.speed
        self._steps = 1 if self._executing or self._planned else self._steps_to_next_end()
        self.due_s = now_s + self._steps * self._step_s

    def _steps_to_next_end(self) -> int:
        return max(1, min(_MAX_STEPS, self._running[0][0] - self._decodes))

    def _plan(self) -> list[_Chunk]:
        room, chunks, machine = self.machine.chunk_tokens, [], self.machine
        while room and self._waiting:
            job = self._waiting[0]
            if not job.computed_tokens:
                need = job.prompt_tokens + job.output_tokens
                full = self._reserved + need > machine.pool_tokens and self._reserved
                if full or len(self._running) + self._in_prefill >= machine.max_running:
                    break
                self._reserved += need
                self._prompt_total += job.prompt_tokens
            tokens = min(room, job.prompt_tokens - job.computed_tokens)
            chunks.append(_Chunk(job, tokens, job.computed_tokens))
            job.computed_tokens += tokens
            room -= tokens
            if job.computed_tokens == job.prompt_tokens:
                self._waiting.popleft()
                self._waiting_tokens -= job.prompt_tokens
                self._in_prefill += 1
        return chunks

    def _shape(self) -> StepShape:
        sizes, running, chunks = self.machine.graph_sizes, len(self._running), self._executing
        index = bisect_left(sizes, running)
        padded = sizes[index] if not chunks and index < len(sizes) else None
        return StepShape(
            graph=padded is not None,
            num_decode=running,
            decode_rows=running if padded is None else padded,
            context_tokens=self._context,
            prefix_pairs=0,
            num_chunks=len(chunks),
            chunk_tokens=sum(chunk.tokens for chunk in chunks),
            chunk_pairs=sum(c.tokens * c.before + c.tokens * (c.tokens + 1) // 2 for c in chunks),
            chunk_context_tokens=sum(chunk.before for chunk in chunks),
        )

    def _first_token(self, job: Job, now_s: float) -> None:
        self._in_prefill -= 1
        for index in range(bisect_left(TTFT_BOUNDS_S, now_s - job.arrival_s), len(self._ttft_counts)):
            self._ttft_counts[index] += 1
        job.on_first(now_s)
        if job.output_tokens <= 1:
            self._end(job, now_s)
            return
        self._ties += 1
        heapq.heappush(self._running, (self._decodes + job.output_tokens - 1, self._ties, job))
        self._context += job.prompt_tokens

    def _end(self, job: Job, now_s: float) -> None:
        self._reserved -= job.prompt_tokens + job.output_tokens
        job.on_end(now_s)
