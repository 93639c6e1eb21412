"""Throughput of one engine without a server: `python -m benchmarks.offline --workload mixed` (or steady, single, ...).

Random weights of a Llama-3-8B shape (or --model-path), greedy, EOS ignored, prefix cache on, fresh random prompt ids,
token ids in and out. Timed is the whole batch, from the first request handed over to the last token, after a warm-up.
Every flag of `canopy worker` may follow; without --model-path those below are the defaults. With `--device sim` time is
virtual: the real scheduler runs, and what the H200 took (docs/performance.md) is printed beside the simulated time.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import Arguments, run
from common.clock import Clock
from common.errors import UserError
from common.settings import load
from worker.assembly import running_scheduler
from worker.config import WorkerSettings
from worker.engine.sim.clock import DeviceClock, SleepingClock, VirtualClock
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput
from worker.models.config import ModelConfig, load_model_config
from worker.preflight import check_before_loading
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}
TOKEN_IDS = (1000, 120_000)


def llama_3_8b(**changes: Any) -> ModelConfig:
    """The model's configuration, with other values of config.json."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA_3_8B))
        return load_model_config(Path(folder), overrides=changes)


# Chosen for throughput by measurement (docs/performance.md): prompts first, followers of a cold prefix later.
FLAGS = (
    ("--load-format", "dummy"),
    ("--context-length", "8192"),
    ("--max-running-requests", "512"),
    ("--cuda-graph-max-bs", "512"),
    ("--mem-fraction-static", "0.88"),
    ("--chunked-prefill-size", "8192"),
    ("--schedule-policy", "lpm"),
    ("--no-enable-mixed-chunk",),
)

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Workload:
    """`num_requests` prompts of `prompt_tokens`, of which the first `shared_tokens` are common to each group of
    `group_size`; `output_tokens` each. Groups come shuffled."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    group_size: int = 1

    def prompts(self, random: np.random.Generator) -> Prompts:
        """Fresh random token ids."""
        own = random.integers(*TOKEN_IDS, (self.num_requests, self.prompt_tokens - self.shared_tokens))
        groups = random.integers(*TOKEN_IDS, (self.num_requests // self.group_size, self.shared_tokens))
        prompts = np.concatenate((np.repeat(groups, self.group_size, axis=0), own), axis=1)
        order = random.permutation(self.num_requests) if self.group_size > 1 else np.arange(self.num_requests)
        return [prompt.tolist() for prompt in prompts[order]]


WORKLOADS = {
    "mixed": Workload(512, 1024, 512),
    "steady": Workload(233, 1464, 256),
    "shared-prefix": Workload(512, 2176, 128, shared_tokens=2048, group_size=64),
    "single": Workload(1, 128, 256),
}
WARM_UP = Workload(4, 96, 8)
# Seconds on one NVIDIA H200 with the default flags (docs/performance.md; single: from its 250 tokens/s).
MEASURED_S = {"mixed": 27.92, "steady": 12.53, "shared-prefix": 4.26, "single": 1.022}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one workload took. Rates are over the whole time; `decode_tok_s` leaves out the time to the first token."""

    workload: str
    seconds: float
    output_tok_s: float
    total_tok_s: float
    decode_tok_s: float
    first_token_s: float
    steps: int
    cached_tokens: int
    start_s: float


class Collector:
    """Receives the scheduler's news and remembers what arrived when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.output_tokens = 0
        self.cached_tokens = 0
        self.finished = 0
        self.first_s: float | None = None
        self.faults: list[str] = []

    def __call__(self, message: SchedulerMessage) -> None:
        if not isinstance(message, StepOutput):
            return
        if self.first_s is None:
            self.first_s = self._clock.now_s()
        self.output_tokens += len(message.tokens)
        for delta in message.deltas:
            self.output_tokens += len(delta.token_ids)
            if delta.finish is not None:
                self.finished += 1
                self.cached_tokens += delta.cached_tokens
                if delta.finish.kind == "abort":
                    self.faults.append(delta.finish.message)


class Bench:
    """A loaded engine and the time it took to load."""

    def __init__(
        self, scheduler: Scheduler, clock: Clock, redirect: Callable[[Collector], None], start_s: float
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._redirect = redirect
        self._start_s = start_s
        self.device = scheduler.ready_message().device

    def run(self, name: str, workload: Workload, seed: int) -> Outcome:
        """One timed run from an empty prefix cache. Raises RuntimeError if any request was not served."""
        scheduler, collector = self._scheduler, Collector(self._clock)
        self._redirect(collector)
        # the name too, or workloads would start with the same prompts and find them cached
        prompts = workload.prompts(np.random.default_rng((seed, *name.encode())))
        sampling = SamplingParams(max_new_tokens=workload.output_tokens, temperature=0.0, ignore_eos=True)
        requests = [
            GenerateRequest(rid=f"{name}-{i}", input_ids=ids, sampling=sampling) for i, ids in enumerate(prompts)
        ]
        steps = scheduler.load_report(0).steps_total
        begin = self._clock.now_s()
        for request in requests:
            scheduler.handle(request)
        while collector.finished < len(requests):
            scheduler.step()
        end = self._clock.now_s()
        while scheduler.step():
            pass
        scheduler.on_idle()
        if collector.faults or collector.output_tokens != len(requests) * workload.output_tokens:
            raise RuntimeError(f"{name}: {collector.output_tokens} tokens came back; faults: {collector.faults[:3]}")
        return self._outcome(name, workload, collector, begin, end, scheduler.load_report(0).steps_total - steps)

    def _outcome(
        self, name: str, workload: Workload, collector: Collector, begin: float, end: float, steps: int
    ) -> Outcome:
        assert collector.first_s is not None
        seconds, outputs = end - begin, collector.output_tokens
        prompts = workload.num_requests * workload.prompt_tokens
        return Outcome(
            workload=name,
            seconds=round(seconds, 3),
            output_tok_s=round(outputs / seconds, 1),
            total_tok_s=round((outputs + prompts) / seconds, 1),
            decode_tok_s=round((outputs - workload.num_requests) / max(end - collector.first_s, 1e-9), 1),
            first_token_s=round(collector.first_s - begin, 4),
            steps=steps,
            cached_tokens=collector.cached_tokens,
            start_s=round(self._start_s, 1),
        )


def names_model(flags: Sequence[str]) -> bool:
    """Whether the user chose a model: otherwise it is random weights of a Llama-3-8B shape."""
    return any(flag.partition("=")[0] in ("--model-path", "--model") for flag in flags)


def announce(settings: WorkerSettings, flags: Sequence[str]) -> None:
    """Say on standard error what will be loaded. Raises UserError if it cannot be, and for the 8B shape on a CPU that
    nobody asked for."""
    check_before_loading(settings)
    if settings.device == "auto" and not names_model(flags):
        import torch

        if not torch.cuda.is_available():
            raise UserError(
                "No GPU was found, and the 8B model takes over 16 GB of memory on a CPU; name a smaller one by "
                "--model-path, simulate with --device sim, or insist with --device cpu."
            )
    model = settings.model_name if names_model(flags) else "random weights of a Llama-3-8B shape"
    print(f"Loading {model} (--device {settings.device}).", file=sys.stderr, flush=True)


@contextmanager
def loaded(flags: Sequence[str]) -> Iterator[Bench]:
    """An engine with these flags of `canopy worker`. Raises UserError."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(LLAMA_3_8B))
        argv = list(flags)
        if not names_model(argv):
            argv += ["--model-path", directory]
            argv += [
                word for flag in FLAGS if not {flag[0], flag[0].replace("--no-", "--")} & set(argv) for word in flag
            ]
        settings = load(WorkerSettings, argv, {}, prog="benchmarks.offline").settings
        announce(settings, flags)
        clock: DeviceClock = VirtualClock() if settings.device == "sim" else SleepingClock()
        sink: list[Collector] = [Collector(clock)]
        begin = clock.now_s()
        with running_scheduler(settings, lambda message: sink[0](message), clock) as scheduler:
            yield Bench(scheduler, clock, lambda collector: sink.__setitem__(0, collector), clock.now_s() - begin)


def versions(device: str) -> dict[str, str]:
    """What ran: machine, GPU, packages."""
    if device == "sim":
        return {"python": platform.python_version(), "device": "simulated"}
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    for package in ("flashinfer-python", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run the workloads. Returns the exit code; raises UserError for a fault of the user."""
    defaults = "\n".join(f"  {' '.join(flag)}" for flag in FLAGS)
    parser = Arguments(prog=prog, description=f"{__doc__}\nDefaults:\n{defaults}")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="repeatable; without it all")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, with different prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options, flags = parser.parse_known_args(argv)
    with loaded(flags) as bench:
        bench.run("warm-up", WARM_UP, options.seed + 1_000_000)
        outcomes = [
            bench.run(name, WORKLOADS[name], options.seed + repeat)
            for name in options.workload or WORKLOADS
            for repeat in range(options.repeat)
        ]
    if options.json:
        print(json.dumps({"versions": versions(bench.device), "outcomes": [asdict(outcome) for outcome in outcomes]}))
        return 0
    for outcome in outcomes:
        measured = f", measured on an H200 {MEASURED_S[outcome.workload]:.2f} s" if bench.device == "sim" else ""
        print(
            f"{outcome.workload:14} {outcome.seconds:8.3f} s  {outcome.output_tok_s:9.1f} out tok/s  "
            f"{outcome.total_tok_s:9.1f} total tok/s  first token {outcome.first_token_s:7.4f} s  "
            f"{outcome.steps} steps{measured}"
        )
    return 0


if __name__ == "__main__":
    run(main)
