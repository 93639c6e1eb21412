"""Experiments in virtual time: replicas with the real scheduler on the simulated accelerator, side by side under the
same saturated traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from common.errors import UserError
from common.tuning.observation import Facts, Observation
from common.tuning.replica_watch import ReplicaWatch
from deploy.tune.trials.bounds import BOUNDS, Change, Value, field_of
from deploy.tune.trials.laboratory import CanaryFailed, Situation, Stretch, Window
from tests.helpers.sim_bench import SimBench
from worker.engine.memory import chosen_mem_fraction, gpu_defaults
from worker.engine.sim.profile import SimProfile

GIB = 2**30
SAMPLE_S = 0.2

Submit = Callable[[SimBench], Any]
"""Hands one request to a replica."""


@dataclass
class VirtualReplica:
    """One replica, and its counters since its start."""

    bench: SimBench
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def series(self) -> dict[str, float]:
        """Its metrics, under the names that /metrics gives them."""
        report, info = self.bench.load, self.bench.runner.info
        return {
            "num_running_reqs": report.num_running_reqs,
            "num_queue_reqs": report.num_waiting_reqs,
            "token_usage": report.token_usage,
            "is_cuda_graph": float(report.scheduler.last_decode_in_graph),
            "num_retracted_requests_total": report.retracted_requests_total,
            "admitted_prompt_tokens_total": report.prompt_tokens_total,
            "admitted_cached_tokens_total": report.cached_tokens_total,
            "sampled_tokens_total": report.generation_tokens_total,
            "num_retracted_input_tokens_total": report.scheduler.retracted_prompt_tokens,
            "num_retracted_output_tokens_total": report.scheduler.retracted_output_tokens,
            "scheduler_steps_total": report.steps_total,
            "max_total_num_tokens": report.max_total_num_tokens,
            "max_running_requests": report.max_running_requests,
            "weight_memory_bytes": info.weight_bytes,
            "startup_available_memory_bytes": info.available_memory_bytes,
        }


class VirtualLaboratory:
    """`replicas` with the same settings, and at times a canary. `traffic` yields requests for ever; every replica has
    `waiting` of them in its queue always."""

    def __init__(
        self,
        profile: SimProfile,
        settings: dict[str, Any],
        traffic: Iterator[Submit],
        *,
        replicas: int = 1,
        waiting: int = 100,
        window_s: float = 4.0,
        look_s: float = 6.0,
    ) -> None:
        self._profile = profile
        self.settings = settings
        self._traffic = traffic
        self._waiting = waiting
        self._window_s = window_s
        self._look_s = look_s
        self._now_s = 0.0
        self._fleet = [self._replica(settings) for _ in range(replicas)]
        self._canary: VirtualReplica | None = None
        self._canary_settings: dict[str, Any] = {}
        self.advance(look_s)

    def look(self) -> Situation:
        seen = self._watch(self._fleet, self._look_s)
        memory = self._profile.memory.total_bytes / GIB
        return Situation(self.effective(), seen, memory)

    def begin(self, change: Change) -> None:
        self._canary_settings = self.settings | {field_of(flag): value for flag, value in change.items()}
        try:
            self._canary = self._replica(self._canary_settings)
        except UserError as error:
            raise CanaryFailed(str(error)) from None

    def window(self) -> Window:
        assert self._canary is not None
        replicas = [self._canary, *self._fleet]
        before = [replica.series() for replica in replicas]
        for replica in replicas:
            replica.samples.clear()
        self.advance(self._window_s)
        canary, *others = (
            _stretch(replica, series, self._window_s) for replica, series in zip(replicas, before, strict=True)
        )
        return Window(canary, others)

    def keep(self) -> None:
        assert self._canary is not None
        self.settings = self._canary_settings
        self._fleet = [self._canary] + [self._replica(self.settings) for _ in self._fleet[1:]]
        self._canary = None

    def drop(self) -> None:
        self._canary = None

    def effective(self) -> dict[str, Value]:
        """The values of the flags that experiments may touch."""
        chosen, bench = self._fleet[0].bench.settings, self._fleet[0].bench
        total = self._profile.memory.total_bytes
        known: dict[str, Value] = {
            "schedule-conservativeness": chosen.schedule_conservativeness,
            "schedule-policy": chosen.schedule_policy,
            "max-running-requests": bench.load.max_running_requests,
            "chunked-prefill-size": chosen.chunked_prefill_size or gpu_defaults(total).chunked_prefill_size,
            "cuda-graph-max-bs": chosen.cuda_graph_max_bs or gpu_defaults(total).max_graph_batch_size,
            "mem-fraction-static": chosen_mem_fraction(
                total,
                asked=chosen.mem_fraction_static,
                chunked_prefill_size=chosen.chunked_prefill_size,
                cuda_graph_max_bs=chosen.cuda_graph_max_bs,
            ),
        }
        assert known.keys() == BOUNDS.keys()
        return known

    def advance(self, seconds: float) -> None:
        """Let time pass for all replicas, with full queues."""
        self._now_s += seconds
        for replica in [*self._fleet, *([self._canary] if self._canary is not None else [])]:
            _run(replica, self._now_s, self._traffic, self._waiting)

    def throughput(self, seconds: float) -> float:
        """Tokens a second of a replica of the fleet, prompts and answers, from now on."""
        replica = self._fleet[0]
        before = _tokens(replica.series())
        self.advance(seconds)
        return (_tokens(replica.series()) - before) / seconds

    def _replica(self, settings: dict[str, Any]) -> VirtualReplica:
        bench = SimBench(self._profile, **settings)
        bench.clock.wait_until(self._now_s)
        return VirtualReplica(bench)

    def _watch(self, replicas: list[VirtualReplica], seconds: float) -> list[Observation]:
        for replica in replicas:
            replica.samples.clear()
        self.advance(seconds)
        facts = Facts(**{field_of(flag): value for flag, value in self.effective().items()})  # type: ignore[arg-type]
        found = []
        for number, replica in enumerate(replicas):
            watch = ReplicaWatch(f"replica-{number}")
            for now_s, series in replica.samples:
                watch.take(now_s, series)
            found.append(watch.observation(facts))
        return found


def _run(replica: VirtualReplica, until_s: float, traffic: Iterator[Submit], waiting: int) -> None:
    bench = replica.bench
    sampled_s = bench.clock.now_s()
    while bench.clock.now_s() < until_s:
        missing = waiting - bench.moments[-1].waiting if bench.moments else waiting
        for _ in range(missing):
            next(traffic)(bench)
        bench.moments.clear()
        bench.step()
        if bench.clock.now_s() >= sampled_s + SAMPLE_S:
            sampled_s = bench.clock.now_s()
            replica.samples.append((sampled_s, replica.series()))


def _tokens(series: dict[str, float]) -> float:
    return series["admitted_prompt_tokens_total"] + series["sampled_tokens_total"]


def _stretch(replica: VirtualReplica, before: dict[str, float], seconds: float) -> Stretch:
    after = replica.series()
    samples = [series for _, series in replica.samples]

    def grown(name: str) -> float:
        return after[name] - before[name]

    return Stretch(
        seconds=seconds,
        tokens=_tokens(after) - _tokens(before),
        running=sum(s["num_running_reqs"] for s in samples) / max(len(samples), 1),
        queue_share=sum(s["num_queue_reqs"] > 0 for s in samples) / max(len(samples), 1),
        recomputed_tokens=grown("num_retracted_input_tokens_total") + grown("num_retracted_output_tokens_total"),
        retractions=grown("num_retracted_requests_total"),
    )
