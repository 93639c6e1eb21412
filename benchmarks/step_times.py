"""Measures how long steps take, for profiles of the simulated accelerator: `python -m benchmarks.step_times --out X`.

Steps of chosen shapes (benchmarks/step_cases.py) go straight to the runner, without a scheduler: random weights of a
Llama-3-8B shape, or --model-path. Each is launched several times, one ahead of the result before, as a scheduler does;
noted is the time from result to result. About a minute on a large GPU. Flags of `canopy worker` may follow.
`python -m worker.engine.sim.fit X --out PROFILE` makes a profile of the result.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import arguments
from benchmarks.offline import LLAMA_3_8B, announce, names_model, versions
from benchmarks.step_cases import BatchBuilder, Case, cases
from common.settings import load
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, ModelRunner, PendingStep, StepFailed
from worker.engine.cuda.graph_sizes import pass_sizes
from worker.engine.factory import create_runner
from worker.engine.page_table import PageTable
from worker.engine.sim.measured import MeasuredDevice, MeasuredStep
from worker.engine.sim.profile import DeviceMemory
from worker.engine.sim.shape import ShapeReader
from worker.engine.sim.step_time import StepShape

FLAGS = {
    "--load-format": "dummy",
    "--context-length": "40960",
    "--max-running-requests": "768",
    "--cuda-graph-max-bs": "512",
    "--mem-fraction-static": "0.88",
}
WARM_UP_STEPS = 2
ENOUGH_S = 0.25  # of one case
FILL_CHUNK_TOKENS = 8192


class StepTimer:
    """Runs steps on a runner and notes times and shapes."""

    def __init__(self, runner: ModelRunner, settings: WorkerSettings, total_bytes: int) -> None:
        info = runner.info
        self._runner = runner
        self._table = PageTable(max_rows=info.max_rows, context_len=info.context_len, page_size=info.page_size)
        on_gpu = info.device == "cuda"
        sizes = pass_sizes(settings, total_bytes=total_bytes, max_rows=info.max_rows) if on_gpu else ()
        cascade = on_gpu and not settings.disable_cascade_attention
        captured = not settings.disable_cuda_graph
        self._shapes = ShapeReader(self._table, sizes=sizes, captured=captured, cascade=cascade)
        self._builder = BatchBuilder(info)

    def fill(self, num_pages: int) -> None:
        """Give the pages that cases will use real contents."""
        for batch in self._builder.fill(num_pages, FILL_CHUNK_TOKENS):
            self._read(batch)
            self._runner.launch(batch).result()

    def measure(self, case: Case, repeats: int) -> MeasuredStep:
        """Up to `repeats` times of one case, fewer if it is slow."""
        batch = self._builder.batch(case)
        pending, shape = self._launch(batch)
        moments = []
        for _ in range(WARM_UP_STEPS + repeats):
            batch = self._builder.again(batch)
            following, shape = self._launch(batch)
            result = pending.result()
            moments.append(time.perf_counter())
            pending = following
            if len(moments) > WARM_UP_STEPS + 1 and moments[-1] - moments[0] > ENOUGH_S:
                break
        pending.result()
        shape = msgspec.structs.replace(shape, graph=result.cuda_graph)  # the runner knows best
        return MeasuredStep(kind=case.kind, shape=shape, times_s=np.diff(moments)[WARM_UP_STEPS - 1 :].tolist())

    def _launch(self, batch: ForwardBatch) -> tuple[PendingStep, StepShape]:
        shape = self._read(batch)
        return self._runner.launch(batch), shape

    def _read(self, batch: ForwardBatch) -> StepShape:
        self._table.apply(batch.page_writes)
        return self._shapes.read(batch)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner, and the device's memory before it was loaded."""

    runner: ModelRunner
    settings: WorkerSettings
    model: str
    total_bytes: int
    free_bytes: int


@contextmanager
def loaded(flags: Sequence[str]) -> Iterator[Loaded]:
    """A runner with these flags of `canopy worker`. Raises UserError."""
    with tempfile.TemporaryDirectory() as directory:
        config = LLAMA_3_8B | {"max_position_embeddings": 65_536}
        Path(directory, "config.json").write_text(json.dumps(config))
        argv, model = list(flags), None
        if not names_model(argv):
            model = "Llama-3-8B shape"
            argv += ["--model-path", directory]
            argv += [word for flag, value in FLAGS.items() if flag not in argv for word in (flag, value)]
        settings = load(WorkerSettings, argv, {}, prog="benchmarks.step_times").settings
        announce(settings, flags)
        total_bytes, free_bytes = _memory(settings.device)
        runner = create_runner(settings)
        try:
            yield Loaded(runner, settings, model or settings.model_name, total_bytes, free_bytes)
        finally:
            runner.close()


def _memory(device: str) -> tuple[int, int]:
    """Bytes in all and free, of the GPU if it will be used, else of the machine."""
    import psutil
    import torch

    if device != "cpu" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return total, free
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def describe(device: Loaded) -> MeasuredDevice:
    """The first line of the file."""
    info = device.runner.info
    found = versions(info.device)
    pool_bytes = info.num_pages * info.page_size * info.kv_bytes_per_token
    left_bytes = device.free_bytes - info.weight_bytes - pool_bytes
    memory = DeviceMemory(
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        weight_bytes=info.weight_bytes,
        workspace_bytes=max(0, left_bytes - info.available_memory_bytes),
        kv_bytes_per_token=info.kv_bytes_per_token,
    )
    what = ", ".join(f"{name} {version}" for name, version in found.items() if name != "device")
    return MeasuredDevice(
        device=found["device"],
        model=f"{device.model}, {info.dtype}",
        source=f"python -m benchmarks.step_times on {platform.system()}, {what}, {time.strftime('%Y-%m-%d')}",
        dtype=info.dtype,
        page_size=info.page_size,
        memory=memory,
    )


def run(out: Path, flags: Sequence[str], *, repeats: int, max_pool_tokens: int) -> int:
    """Measure all cases that fit and write them as they come. Returns how many failed. Raises UserError."""
    failed = 0
    with loaded(flags) as device, out.open("wb") as file:
        info = device.runner.info
        file.write(msgspec.json.encode(describe(device)) + b"\n")
        timer = StepTimer(device.runner, device.settings, device.total_bytes)
        chosen = [case for case in cases() if case.fits(info, max_pool_tokens)]
        print(f"{info}\nfilling the KV pool", flush=True)
        timer.fill(max(case.num_pages(info.page_size) for case in chosen))
        begin = time.perf_counter()
        for done, case in enumerate(chosen, 1):
            try:
                measured = timer.measure(case, repeats)
            except StepFailed as fault:
                failed += 1
                print(f"{done}/{len(chosen)} {case.kind} failed: {fault}", flush=True)
                continue
            file.write(msgspec.json.encode(measured) + b"\n")
            file.flush()
            if done % 20 == 0 or done == len(chosen):
                ms = np.median(measured.times_s) * 1e3
                print(f"{done}/{len(chosen)} {time.perf_counter() - begin:5.1f} s  {case.kind} {ms:.2f} ms", flush=True)
    return failed


def main() -> int:
    """Measure. Returns the exit code: 1 if any step failed. Raises UserError."""
    parser = arguments.Arguments(prog="python -m benchmarks.step_times", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--repeats", type=int, default=6, help="times of each step")
    parser.add_argument("--max-pool-tokens", type=int, default=600_000, help="KV of the largest step")
    options, flags = parser.parse_known_args()
    failed = run(options.out, flags, repeats=options.repeats, max_pool_tokens=options.max_pool_tokens)
    return 1 if failed else 0


if __name__ == "__main__":
    arguments.run(main)
