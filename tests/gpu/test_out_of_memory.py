"""A GPU that is really full: at the start one sentence, in a pass 503 for its requests, and the engine lives on."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from common.clock import MonotonicClock
from common.errors import UserError
from tests.gpu.reference import SMALL, WIDE, make_checkpoint
from tests.helpers.step_news import tokens_of
from worker.config import WorkerSettings
from worker.engine.batch import ModelRunner
from worker.engine.factory import create_runner
from worker.ipc.messages import FinishReason, GenerateRequest, SchedulerMessage, StepOutput
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

MIB = 2**20
LONG_PROMPT = 8000  # tokens; each layer's activations take tens of MiB
# torch takes 2 MiB from the device for tensors up to 1 MiB, at least 20 MiB for larger ones.
LEFT_FREE = 8 * MIB
FLAGS: dict[str, Any] = {
    "max_running_requests": 16,
    "cuda_graph_max_bs": 8,
    "max_total_tokens": 40_000,
    "chunked_prefill_size": 8192,
    "mem_fraction_static": 0.5,
    "disable_radix_cache": True,
}


@contextmanager
def full_gpu() -> Iterator[None]:
    """All of the GPU's memory but a few MiB is taken."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    hogs: list[torch.Tensor] = []
    size = int(torch.cuda.mem_get_info()[0])
    while size >= 2 * MIB and torch.cuda.mem_get_info()[0] > LEFT_FREE:
        size = min(size, (int(torch.cuda.mem_get_info()[0]) - LEFT_FREE + 2 * MIB) // (2 * MIB) * (2 * MIB))
        try:
            hogs.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    try:
        assert torch.cuda.mem_get_info()[0] < 20 * MIB
        yield
    finally:
        hogs.clear()
        torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    make_checkpoint(path, SMALL | {"max_position_embeddings": 16_384}, seed=int(time.time()))
    gc.collect()
    torch.cuda.empty_cache()
    return path


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[ModelRunner]:
    made = create_runner(WorkerSettings(model_path=str(directory), **FLAGS))
    yield made
    made.close()


class Bench:
    """A scheduler over the real runner, and what its requests were told."""

    def __init__(self, directory: Path, runner: ModelRunner, **settings: Any) -> None:
        chosen = WorkerSettings(model_path=str(directory), **FLAGS | settings)
        self.scheduler = Scheduler(chosen, runner, MonotonicClock(), self._take, lambda: 0)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}

    def submit(self, rid: str, prompt: list[int], max_new_tokens: int) -> None:
        sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True)
        self.tokens[rid] = []
        self.scheduler.handle(GenerateRequest(rid=rid, input_ids=prompt, sampling=sampling))

    def run(self) -> None:
        while self.scheduler.step():
            pass
        self.scheduler.on_idle()  # checks that no page is lost

    def answer(self, prompt: list[int], max_new_tokens: int) -> list[int]:
        """The tokens of a request that runs alone."""
        self.submit("alone", prompt, max_new_tokens)
        self.run()
        assert self.ends["alone"].kind == "length"
        return self.tokens["alone"]

    def _take(self, message: SchedulerMessage) -> None:
        assert isinstance(message, StepOutput)
        for rid, new in tokens_of(message):
            self.tokens[rid].extend(new)
        for delta in message.deltas:
            if delta.finish is not None:
                self.ends[delta.rid] = delta.finish


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "sync"])
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "apart"])
def test_a_prefill_on_a_full_gpu_fails_its_step_only(
    directory: Path, runner: ModelRunner, mixed: bool, overlap: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(directory, runner, enable_mixed_chunk=mixed, disable_overlap_schedule=not overlap)
    random = np.random.default_rng(5)
    short, long = (random.integers(3, 4000, n).tolist() for n in (40, LONG_PROMPT))
    expected_short, expected_long = bench.answer(short, 200), bench.answer(long, 8)

    bench.submit("running", short, 200)
    for _ in range(20):
        bench.scheduler.step()
    with full_gpu():
        bench.submit("hit", long, 8)
        bench.submit("hit too", long, 8)
        bench.run()
    for rid in ("hit", "hit too"):
        assert (bench.ends[rid].kind, bench.ends[rid].status, bench.tokens[rid]) == ("abort", 503, [])
        assert "The GPU has no memory left for this pass." in bench.ends[rid].message
    if mixed:
        assert (bench.ends["running"].kind, bench.ends["running"].status) == ("abort", 503)
        assert bench.tokens["running"] == expected_short[: len(bench.tokens["running"])] != []
    else:
        assert bench.tokens["running"] == expected_short
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors and all("Lower --chunked-prefill-size or --mem-fraction-static." in error for error in errors)

    assert bench.answer(short, 200) == expected_short
    assert bench.answer(long, 8) == expected_long


def _fault(directory: Path, **flags: Any) -> str:
    """What a start says; everything it took is free again afterwards."""
    try:
        create_runner(WorkerSettings(model_path=str(directory), **FLAGS | flags)).close()
    except UserError as error:
        text = str(error)
    else:
        text = "started"
    gc.collect()
    torch.cuda.empty_cache()
    return text


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    with full_gpu():
        text = _fault(tmp_path, load_format="dummy")
    assert "--model-path: the weights do not fit into the 0.0 GiB that are free" in text


def test_a_share_that_leaves_no_room_for_buffers(directory: Path) -> None:
    text = _fault(directory, mem_fraction_static=0.9999, max_total_tokens=None)
    assert "lower --mem-fraction-static or" in text


def test_a_share_too_small_for_the_weights(directory: Path) -> None:
    assert "raise it or serve a smaller model" in _fault(directory, mem_fraction_static=0.00001)
