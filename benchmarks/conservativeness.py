"""Fixed --schedule-conservativeness beside auto on eleven workloads: `python -m benchmarks.conservativeness`.

The real scheduler over the simulated accelerator in virtual time (profile h200-llama3-8b), with a small KV pool so that
it is what limits. Answers end where the workload says: the program sends what a frontend sends that found a stop
string. Throughput is output tokens a second over all of the time; retractions count after --settle seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from benchmarks.conservativeness_workloads import TOKEN_IDS, WORKLOADS, Job, Workload
from benchmarks.offline import llama_3_8b
from worker.config import WorkerSettings
from worker.engine.sim.profile import load_profile
from worker.ipc.messages import GenerateRequest, LoadReport, StepOutput, StopMatched
from worker.sampling_params import SamplingParams
from worker.simulated import simulated

Value = float | Literal["auto"]

FIXED: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 1.0, 1.3, 1.6)
_CONTEXT = 32_768
_ANSWER = np.array([TOKEN_IDS[1]], np.int32)  # what all answers are made of: no prompt has it


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. Rates over its time, except `retractions_per_minute`, which leaves the start out."""

    workload: str
    value: Value
    seconds: float
    output_tok_s: float
    retractions_per_minute: float  # times that requests were sent back, one or more at once
    retracted_per_minute: float  # requests
    mean_usage: float  # of the KV pool, by step


class Driver:
    """One replica and its clients."""

    def __init__(self, workload: Workload, value: Value, seed: int) -> None:
        settings = WorkerSettings(
            model_path="none",
            device="sim",
            max_total_tokens=workload.pool_tokens,
            schedule_conservativeness=value,
            **workload.settings,
        )
        profile = msgspec.structs.replace(load_profile("h200-llama3-8b"), answer_tokens=None)
        model = llama_3_8b(max_position_embeddings=_CONTEXT)
        self._clock, _, self.scheduler = simulated(settings, model, profile, _ANSWER, self._hear)
        self._workload = workload
        self._jobs = workload.jobs(np.random.default_rng(seed))
        self._left: dict[str, int] = {}  # tokens until the answer ends by itself
        self._ended: list[str] = []
        self._lengths: dict[str, int] = {}
        self._sent = self._live = self.output_tokens = 0

    @property
    def now_s(self) -> float:
        return self._clock.now_s()

    def load(self) -> LoadReport:
        """What the replica says of itself now."""
        return self.scheduler.load_report(0)

    def step(self, report: LoadReport) -> None:
        """Send what is due, by the present report, and compute a step."""
        workload = self._workload
        if workload.burst:
            for _ in range(0 if self._live else workload.burst):
                self._send(next(self._jobs))
        else:
            for _ in range(workload.waiting - report.num_waiting_reqs):
                self._send(next(self._jobs))
        if not self.scheduler.step() and not self._live:
            self.scheduler.on_idle()
        for rid in self._ended:
            self.scheduler.handle(StopMatched(rid=rid, num_output_tokens=self._lengths.pop(rid)))
            self._live -= 1
        self._ended.clear()

    def _send(self, job: Job) -> None:
        self._sent += 1
        self._live += 1
        rid = f"r{self._sent}"
        self._left[rid] = job.output_tokens if job.output_tokens is not None else -1
        self._lengths[rid] = job.output_tokens or 0
        sampling = SamplingParams(
            max_new_tokens=job.max_new_tokens, temperature=0.0, ignore_eos=job.output_tokens is None
        )
        self.scheduler.handle(GenerateRequest(rid=rid, input_ids=job.prompt, sampling=sampling))

    def _hear(self, news: StepOutput) -> None:
        for rid in news.rids:
            self._take(rid, 1)
        for delta in news.deltas:
            self._take(delta.rid, len(delta.token_ids))
            if delta.finish is not None:
                if delta.finish.kind != "length":
                    raise RuntimeError(f"{delta.rid}: {delta.finish}")
                if self._left.pop(delta.rid, None) is not None:
                    self._live -= 1

    def _take(self, rid: str, tokens: int) -> None:
        left = self._left.get(rid)
        if left is None:  # its stop is on its way
            return
        self.output_tokens += tokens
        self._left[rid] = left - tokens
        if left - tokens == 0:
            del self._left[rid]
            self._ended.append(rid)


def measure(name: str, value: Value, *, seconds: float, settle_s: float, seed: int = 0) -> Outcome:
    """One value on one workload."""
    driver = Driver(WORKLOADS[name], value, seed)
    usages, times, retracted = [], 0, 0
    report = driver.load()
    while driver.now_s < seconds:
        usages.append(report.token_usage)
        driver.step(report)
        before, report = report, driver.load()
        if driver.now_s >= settle_s:
            sent_back = report.retracted_requests_total - before.retracted_requests_total
            times += sent_back > 0
            retracted += sent_back
    minutes = (driver.now_s - settle_s) / 60
    return Outcome(
        workload=name,
        value=value,
        seconds=round(driver.now_s, 2),
        output_tok_s=round(driver.output_tokens / driver.now_s, 1),
        retractions_per_minute=round(times / minutes, 2),
        retracted_per_minute=round(retracted / minutes, 2),
        mean_usage=round(float(np.mean(usages)), 3),
    )


def _run(task: tuple[str, Value, float, float]) -> Outcome:
    logging.disable(logging.WARNING)
    name, value, seconds, settle_s = task
    return measure(name, value, seconds=seconds, settle_s=settle_s)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line for each workload: the best fixed value, auto beside it, and what both retract."""
    heads = {
        "workload": -16,
        "best fixed": 10,
        "tok/s": 8,
        "retr/min": 8,
        "auto tok/s": 10,
        "auto r/min": 10,
        "ratio": 6,
    }
    yield " ".join(f"{name:{'<' if width < 0 else '>'}{abs(width)}}" for name, width in heads.items())
    for name in dict.fromkeys(outcome.workload for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.workload == name]
        fixed = [outcome for outcome in mine if outcome.value != "auto"]
        auto = next((outcome for outcome in mine if outcome.value == "auto"), None)
        if not fixed or auto is None:
            continue
        best = max(fixed, key=lambda outcome: outcome.output_tok_s)
        yield (
            f"{name:<16} {best.value:>10} {best.output_tok_s:>8} {best.retractions_per_minute:>8} "
            f"{auto.output_tok_s:>10} {auto.retractions_per_minute:>10} {auto.output_tok_s / best.output_tok_s:>6.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="virtual, of each run")
    parser.add_argument("--settle", type=float, default=60.0, help="virtual seconds until retractions count")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--values", nargs="+", default=[*map(str, FIXED), "auto"], help="numbers, and auto")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    values: list[Value] = ["auto" if text == "auto" else float(text) for text in args.values]
    tasks = [(name, value, args.seconds, args.settle) for name in args.workloads for value in values]
    outcomes = []
    with ProcessPoolExecutor(args.processes) as pool:
        for outcome in pool.map(_run, tasks):
            outcomes.append(outcome)
            print(outcome, file=sys.stderr, flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    print("\n".join(table(outcomes)))


if __name__ == "__main__":
    main()
