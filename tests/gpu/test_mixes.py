"""The CUDA runner under traffic: random mixes of requests leave the pool whole, and faults end with a clear word."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from common.clock import MonotonicClock
from common.errors import UserError
from tests.gpu.reference import SMALL, make_checkpoint
from tests.helpers.step_news import tokens_of
from worker.config import WorkerSettings
from worker.engine.batch import ModelRunner
from worker.engine.cuda import runner as runner_module
from worker.engine.cuda.cascade import CascadeCost
from worker.engine.factory import create_runner
from worker.ipc.messages import AbortRequest, GenerateRequest, SchedulerMessage, StepOutput
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

FLAGS: dict[str, Any] = {
    "max_running_requests": 24,
    "cuda_graph_max_bs": 16,
    "max_total_tokens": 1500,
    "chunked_prefill_size": 128,
    "mem_fraction_static": 0.5,
    "schedule_conservativeness": 0.0,  # admits too many, so that some must leave again
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    make_checkpoint(path, SMALL, seed=int(time.time()))
    return path


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[ModelRunner]:
    patch = pytest.MonkeyPatch()
    patch.setattr(runner_module, "CASCADE_COST", CascadeCost(64, 0))
    patch.setattr(runner_module, "MIN_CASCADE_ROWS", 3)
    made = create_runner(WorkerSettings(model_path=str(directory), **FLAGS))
    yield made
    made.close()
    patch.undo()


def _sampling(random: np.random.Generator) -> SamplingParams:
    choice = int(random.integers(4))
    return SamplingParams(
        max_new_tokens=int(random.integers(1, 60)),
        temperature=0.0 if choice == 0 else 0.9,
        top_p=0.8 if choice == 1 else 1.0,
        top_k=20 if choice == 2 else -1,
        frequency_penalty=0.4 if choice == 3 else 0.0,
        min_new_tokens=int(random.integers(0, 3)) if choice == 3 else 0,
        ignore_eos=bool(random.integers(2)),
    )


@pytest.mark.timeout(200)
def test_random_mixes_leave_the_pool_whole(directory: Path, runner: ModelRunner) -> None:
    """200 mixes: shared and own prompts, every kind of sampling, aborts, a pool small enough for retractions."""
    random = np.random.default_rng(int(time.time()))
    settings = WorkerSettings(model_path=str(directory), **FLAGS)
    ended: set[str] = set()

    def take(message: SchedulerMessage) -> None:
        if isinstance(message, StepOutput):
            ended.update(delta.rid for delta in message.deltas if delta.finish is not None)

    scheduler = Scheduler(settings, runner, MonotonicClock(), take, lambda: int(random.integers(1 << 62)))
    shared = random.integers(3, 4000, 150).tolist()
    for mix in range(200):
        rids = [f"{mix}-{i}" for i in range(int(random.integers(1, 30)))]
        for rid in rids:
            prompt = shared[: int(random.integers(0, 150))] + random.integers(3, 4000, random.integers(1, 90)).tolist()
            scheduler.handle(GenerateRequest(rid=rid, input_ids=prompt, sampling=_sampling(random)))
        steps = 0
        while not scheduler.idle:
            scheduler.step()
            steps += 1
            if random.integers(20) == 0:
                scheduler.handle(AbortRequest(rid=rids[int(random.integers(len(rids)))]))
            assert steps < 10_000
        assert ended >= set(rids)
        scheduler.on_idle()
    assert scheduler.load_report(0).retracted_requests_total > 0


def test_seeded_draws_do_not_depend_on_the_place_in_the_batch(directory: Path, runner: ModelRunner) -> None:
    settings = WorkerSettings(model_path=str(directory), disable_radix_cache=True, **FLAGS)
    tokens: dict[str, list[int]] = {}

    def take(message: SchedulerMessage) -> None:
        if isinstance(message, StepOutput):
            for rid, new in tokens_of(message):
                tokens.setdefault(rid, []).extend(new)

    scheduler = Scheduler(settings, runner, MonotonicClock(), take, lambda: 0)
    sampling = SamplingParams(max_new_tokens=20, temperature=1.0, top_p=0.9, seed=5, ignore_eos=True)
    others = SamplingParams(max_new_tokens=20, temperature=1.0, ignore_eos=True)
    for asked, place in (("first", 0), ("last", 11)):
        for i in range(12):
            wishes, prompt = (sampling, [10, 11, 12, 13]) if i == place else (others, [20 + i] * 4)
            name = asked if i == place else f"{asked}{i}"
            scheduler.handle(GenerateRequest(rid=name, input_ids=prompt, sampling=wishes))
        while not scheduler.idle:
            scheduler.step()
    assert tokens["first"] == tokens["last"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"mem_fraction_static": 0.0001}, "--mem-fraction-static"),
        ({"dtype": "float32"}, "--dtype"),
    ],
)
def test_faults_name_the_flag_to_change(directory: Path, flags: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        create_runner(WorkerSettings(model_path=str(directory), **FLAGS | flags))
