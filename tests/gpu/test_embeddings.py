"""Embeddings of the CUDA runner in bf16 beside Transformers' own in fp32, in every way they can be computed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from common.clock import MonotonicClock
from tests.gpu.reference import SMALL, make_checkpoint, random_prompts
from tests.helpers.embedding_models import LAST, MEAN, write_steps
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput, TokenDelta
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "chunks": {"chunked_prefill_size": 128},
    "whole prompts": {"chunked_prefill_size": -1},
    "no overlap": {"disable_overlap_schedule": True},
    "small pages": {"page_size": 1},
    "one at a time": {"max_running_requests": 1},
    "Transformers' code": {"model_impl": "transformers"},
}
LEAST_COSINE = 0.999


@pytest.fixture(scope="module", params=[LAST, MEAN])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, SMALL, seed=int(time.time()))
    write_steps(directory, pooling=request.param)
    return directory, request.param


@pytest.fixture(scope="module")
def expected(checkpoint: tuple[Path, str]) -> torch.Tensor:
    """fp32 [prompts, hidden size], each 1 long."""
    from transformers import AutoModel

    torch.backends.cuda.matmul.allow_tf32 = False
    directory, pooling = checkpoint
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).to("cuda").eval()
    with torch.inference_mode():
        states = [model(torch.tensor([p], device="cuda")).last_hidden_state[0] for p in random_prompts(SMALL, seed=1)]
        pooled = torch.stack([hidden[-1] if pooling == LAST else hidden.mean(0) for hidden in states])
    return torch.nn.functional.normalize(pooled.cpu(), dim=1)


def embed(directory: Path, prompts: list[list[int]], rounds: int, **settings: Any) -> list[TokenDelta]:
    """News of each prompt, the last time of so many."""
    values: dict[str, Any] = {"max_total_tokens": 200_000, "max_running_requests": 64, "mem_fraction_static": 0.6}
    chosen = WorkerSettings(model_path=str(directory), **values | settings)
    runner = create_runner(chosen)
    told: dict[str, TokenDelta] = {}

    def take(message: SchedulerMessage) -> None:
        if isinstance(message, StepOutput):
            told.update({delta.rid: delta for delta in message.deltas})

    scheduler = Scheduler(chosen, runner, MonotonicClock(), take, lambda: 0)
    for _ in range(rounds):
        for i, prompt in enumerate(prompts):
            scheduler.handle(GenerateRequest(rid=str(i), input_ids=prompt, sampling=SamplingParams(max_new_tokens=0)))
        while not scheduler.idle:
            scheduler.step()
        scheduler.on_idle()
    runner.close()
    return [told[str(i)] for i in range(len(prompts))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rounds", [1, 2], ids=["computed", "cached"])
@pytest.mark.parametrize("way", WAYS)
def test_vectors_agree_with_transformers(
    checkpoint: tuple[Path, str], expected: torch.Tensor, way: str, rounds: int
) -> None:
    directory, pooling = checkpoint
    told = embed(directory, random_prompts(SMALL, seed=1), rounds, **WAYS[way])
    vectors = torch.from_numpy(np.stack([np.frombuffer(delta.vector, np.float32) for delta in told]))
    cosines = torch.nn.functional.cosine_similarity(vectors, expected)
    cached = sum(delta.cached_tokens for delta in told)
    print(f"\n{pooling}, {way}: least cosine {float(cosines.min()):.6f}, {cached} tokens cached")
    assert float(cosines.min()) > LEAST_COSINE
    if pooling == MEAN:
        assert cached == 0
    elif rounds == 2:
        assert cached > 0
