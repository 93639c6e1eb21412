"""Random scenarios for the tuner: worker settings, load and faults, what a real scheduler logs under them in virtual
time, and which findings are right, told by the scenario and by the state after every step, not by the rules."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import numpy.typing as npt

from common.tuning.observation import Facts, Observation
from deploy.tune.logs import LogReader
from tests.helpers.deployments import HARMLESS, SEEN, Deployment, deployment
from tests.helpers.sim_bench import SimBench, h200, random_prompt
from worker.engine.batch import Bools, ForwardBatch, PendingStep, StepFailed

GIB = 2**30
_BEGIN = datetime(2026, 1, 5, 10)
NEVER, SURELY = 0.4, 0.6  # shares of the time that are clearly seldom and often
LOW, HIGH = 0.87, 0.93  # usage of the pool that is clearly below and above the guide's 0.9

Judged = dict[int, bool]
"""Rule -> whether it must have found something to change or to praise. A rule near its threshold is not in it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is drawn. `waiting`: requests kept in the queue; 0: `in_flight` are kept running, none waits."""

    seed: int
    pool_tokens: int
    max_running: int | None
    conservativeness: float
    policy: str
    graph_max_bs: int
    chunk: int
    free_gb: float
    speed: float
    steps: int
    waiting: int
    in_flight: int
    prompt: int
    limit: int
    exact: bool  # answers use their limit
    shared: float  # of each prompt
    prefill_faults: int
    decode_faults: int
    texts: dict[int, str]  # rule -> the line in the log that means its trouble
    harmless: str  # a line in the log
    deployment: Deployment
    facts: Facts


def drawn(seed: int) -> Scenario:
    """A scenario. Every other one is crowded: a pool full of long prompts, with answers as long as they may be."""
    scenario = _any(random.Random(seed))
    if seed % 2:
        return scenario
    rng = random.Random(-seed - 1)
    return replace(
        scenario,
        pool_tokens=rng.choice([4000, 8000]),
        max_running=None,
        conservativeness=rng.choice([0.0, 0.0, 0.0, 0.05, 0.5]),
        waiting=rng.choice([20, 60, 130]),
        exact=True,
        limit=rng.choice([12, 16, 24, 40]),
        prompt=rng.choice([128, 256, 400]),
        shared=0.0,
        speed=rng.choice([0.02, 0.1, 0.3]),
        prefill_faults=0,
        decode_faults=0,
    )


def _any(rng: random.Random) -> Scenario:
    load = rng.choice(["trickle", "trickle", "queue", "queue", "queue", "queue", "queue", "flood"])
    exact = rng.random() < 0.4
    limit = rng.choice([60, 100, 160]) if exact else rng.choice([128, 256, 512])
    faults = rng.random()
    chosen = deployment(rng)
    return Scenario(
        seed=rng.randrange(10_000),
        pool_tokens=rng.choice([3000, 5000, 8000, 16_000]),
        max_running=rng.choice([None, None, None, 8, 24]),
        conservativeness=rng.choice([0.0, 0.1, 0.3, 0.6, 1.0, 1.0, 1.3]),
        policy=rng.choice(["fcfs", "fcfs", "lpm"]),
        graph_max_bs=rng.choice([4, 8, 16, 256]),
        chunk=rng.choice([512, 2048, 4096, 8192]),
        free_gb=rng.choice([2.0, 4.0, 5.5, 6.5, 7.5, 8.5, 9.5, 12.0, 30.0]),
        speed=rng.choice([0.02, 0.1, 0.5]),
        steps=rng.randrange(250, 450),
        waiting={"trickle": 0, "queue": rng.choice([3, 20, 60, 130, 300]), "flood": 2300}[load],
        in_flight=rng.choice([2, 6, 12]),
        prompt=8 if load == "flood" else rng.choice([32, 64, 128]),
        limit=limit,
        exact=exact,
        shared=0.0 if load == "flood" else rng.choice([0.0, 0.0, 0.75]),
        prefill_faults=rng.randrange(1, 4) if faults < 0.15 else 0,
        decode_faults=rng.randrange(1, 4) if 0.15 <= faults < 0.3 else 0,
        texts={rule: rng.choice(lines) for rule, lines in SEEN.items() if rng.random() < 0.15},
        harmless=rng.choice(HARMLESS),
        deployment=chosen,
        facts=Facts(
            tp_size=chosen.tp,
            nnodes=rng.choice([1, 2]),
            weights_gb=chosen.weights_gb,
            gpu_gb=chosen.gpu_gb,
            quantization=chosen.model.quantization,
            architectures=[chosen.model.architecture],
            torch_compile=rng.random() < 0.2,
            is_canopy=rng.random() < 0.4,
        ),
    )


class FaultyRunner:
    """Seen by the scheduler in the runner's place: some steps find no memory."""

    def __init__(self, bench: SimBench, scenario: Scenario) -> None:
        self._inner = bench.runner
        self._prefills, self._decodes = scenario.prefill_faults, scenario.decode_faults
        self._launches = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def launch(self, batch: ForwardBatch) -> PendingStep:
        """Every 23rd step may fail, if it is of a kind that shall."""
        self._launches += 1
        if self._launches % 23 == 0 or self._launches > 150:
            if self._prefills and len(batch.prefill_ids):
                self._prefills -= 1
                raise StepFailed("The GPU has no memory left for this pass.", advice="Lower --chunked-prefill-size.")
            if self._decodes and not len(batch.prefill_ids):
                self._decodes -= 1
                raise StepFailed("The GPU has no memory left for this pass.", advice="Lower --max-running-requests.")
        return self._inner.launch(batch)

    @property
    def left(self) -> int:
        """Faults that found no step."""
        return self._prefills + self._decodes


@dataclass
class Truth:
    """The state after each step, and what was done."""

    seconds: float = 0.0
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    retractions: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    faults_left: int = 0


def played(scenario: Scenario) -> tuple[Observation, Truth]:
    """The scenario through the scheduler: what `canopy tune` reads of its log, and what was so."""
    reader, truth = LogReader("r"), Truth()
    with _log(reader.take) as stamp:
        bench = _bench(scenario)
        stamp(bench.clock.now_s)
        faulty = FaultyRunner(bench, scenario)
        bench.scheduler._profiles.launch = faulty.launch
        submit = _client(scenario, bench)
        for line in (scenario.harmless, *scenario.texts.values()):
            reader.take(line)
        _run(scenario, bench, submit, truth)
    truth.seconds, truth.faults_left, truth.output_tokens = bench.clock.now_s(), faulty.left, bench.output_tokens
    truth.prompt_tokens, truth.cached_tokens = bench.load.prompt_tokens_total, bench.load.cached_tokens_total
    facts = replace(
        scenario.facts,
        schedule_conservativeness=scenario.conservativeness,
        schedule_policy=scenario.policy,
        cuda_graph_max_bs=scenario.graph_max_bs,
        mem_fraction_static=0.9,
    )
    return reader.observation(facts), truth


def _bench(scenario: Scenario) -> SimBench:
    profile = h200(answer_tokens=(15, 50))
    memory = profile.memory
    pool_bytes = scenario.pool_tokens // 16 * 16 * memory.kv_bytes_per_token
    free = memory.weight_bytes + memory.workspace_bytes + pool_bytes + int(scenario.free_gb * GIB)
    profile = msgspec.structs.replace(profile, memory=msgspec.structs.replace(memory, free_bytes=free))
    return SimBench(
        profile,
        mem_fraction_static=0.99,
        max_total_tokens=scenario.pool_tokens,
        max_running_requests=scenario.max_running,
        schedule_conservativeness=scenario.conservativeness,
        schedule_policy=scenario.policy,
        cuda_graph_max_bs=scenario.graph_max_bs,
        chunked_prefill_size=scenario.chunk,
        sim_speed=scenario.speed,
        decode_log_interval=5,
    )


def _client(scenario: Scenario, bench: SimBench) -> Callable[[], None]:
    heads = [random_prompt(group, int(scenario.prompt * scenario.shared)) for group in range(3)]

    def submit() -> None:
        number = len(bench.served)
        own = random_prompt(scenario.seed * 100_000 + number, scenario.prompt - len(heads[0]))
        bench.submit(heads[number % 3] + own, scenario.limit, ignore_eos=scenario.exact)

    return submit


def _run(scenario: Scenario, bench: SimBench, submit: Callable[[], None], truth: Truth) -> None:
    for _ in range(scenario.steps):
        load = bench.load
        if scenario.waiting:
            missing = scenario.waiting - load.num_waiting_reqs
        else:
            missing = scenario.in_flight - load.num_running_reqs - load.num_waiting_reqs
        for _ in range(missing):
            submit()
        before = load.retracted_requests_total
        bench.step()
        moment = bench.moments[-1]
        truth.waiting.append(moment.waiting)
        truth.running.append(moment.running)
        truth.usage.append(moment.usage)
        truth.retractions += bench.load.retracted_requests_total > before


@contextmanager
def _log(take: Callable[[str], None]) -> Iterator[Callable[[Callable[[], float]], None]]:
    """The scheduler's log lines go to `take`, with the time of the clock that is given to what this yields."""
    now: list[Callable[[], float]] = [lambda: 0.0]

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            at = _BEGIN + timedelta(seconds=now[0]())
            take(f"[{at:%Y-%m-%d %H:%M:%S}] {record.getMessage()}")

    logger, handler = logging.getLogger("worker.scheduler"), Handler()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield lambda clock: now.__setitem__(0, clock)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def expected(scenario: Scenario, truth: Truth) -> Judged:
    """What must be found, and what must not."""
    return _load(scenario, truth) | _retractions(truth) | _memory(scenario, truth) | _machine(scenario, truth)


def _often(shares: Bools) -> bool | None:
    share = float(np.mean(shares))
    return True if share >= SURELY else False if share <= NEVER else None


def _surely(strict: Bools, loose: Bools) -> bool | None:
    """Often even where the bound is strict, seldom even where it is loose, or neither."""
    return True if _often(strict) else False if _often(loose) is False else None


def _full(usage: npt.NDArray[np.float64]) -> bool | None:
    return _surely(usage > HIGH, usage > LOW)


def _known(**found: bool | None) -> Judged:
    return {int(name[1:]): value for name, value in found.items() if value is not None}


def _load(scenario: Scenario, truth: Truth) -> Judged:
    waiting, usage = np.array(truth.waiting), np.array(truth.usage)
    low, high = np.quantile(waiting, (0.35, 0.65))
    some_wait = None if (low == 0) != (high == 0) else bool(low > 0)
    few = None if (low <= 2000) != (high <= 2000) else bool(high <= 2000)
    hits = truth.cached_tokens / truth.prompt_tokens
    shared = None if 0.22 < hits < 0.38 else hits >= 0.38
    decoding = np.array(truth.running) > scenario.graph_max_bs
    return _known(
        r1=_often(waiting == 0),
        r2=None if some_wait is None or few is None else some_wait and few,
        r3=_often(waiting > 2000),
        r4=_full(usage),
        r5=_surely((waiting > 0) & (usage < LOW), (waiting > 0) & (usage < HIGH)),
        r14=_often(decoding),
        r19=None if shared is None or _often(waiting > 0) is None else shared and bool(_often(waiting > 0)),
    )


def _retractions(truth: Truth) -> Judged:
    rate = truth.retractions / (truth.seconds / 60)
    full = _full(np.array(truth.usage))
    near = 0.8 < rate < 1.25 or truth.seconds < 20
    return _known(
        r6=None if near else False if rate < 1 else full,
        r7=None if near else 0 < rate < 1,
    )


def _memory(scenario: Scenario, truth: Truth) -> Judged:
    free = scenario.free_gb
    failed = not truth.faults_left
    ran_out = scenario.prefill_faults + scenario.decode_faults > truth.faults_left
    chunks_help = scenario.chunk > 2048
    return _known(
        r8=5 <= free <= 8,
        r9=free > 10 and not ran_out,
        r10=free < 5,
        r11=(bool(scenario.prefill_faults) and chunks_help) if failed else None,
        r12=bool(scenario.decode_faults) if failed else None,
        r13=(bool(scenario.prefill_faults) and not chunks_help) if failed else None,
    )


def _machine(scenario: Scenario, truth: Truth) -> Judged:
    facts, used = scenario.facts, scenario.deployment
    model, canopy = used.model, facts.is_canopy
    few_run = _often(np.array(truth.running) <= 8)
    small = None if few_run is None else model.is_small and few_run and not facts.torch_compile and not canopy
    return _known(
        r15=used.tp > 1 and _roomy(used.room_on(1)),
        r16=small,
        r17=model.quantization is None and _tight(used.room_on(used.tp)),
        r18=model.has_experts and used.tp > 1 and not canopy,
        r20=20 in scenario.texts,
        r21=21 in scenario.texts and scenario.facts.nnodes == 2,
        r22=22 in scenario.texts,
    )


def _roomy(room: float) -> bool | None:
    """Whether one GPU serves the model well: half as much room for KV as it has weights, or hardly any."""
    return True if room >= 0.5 else False if room <= 0.15 else None


def _tight(room: float) -> bool | None:
    """Whether weights leave little for KV: a third of what they take, or two thirds."""
    return True if room <= 0.35 else False if room >= 0.65 else None
