"""The CUDA runner against Transformers in fp32, in every way it can run the same prompts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.gpu.reference import SMALL, WIDE, Run, compare, make_checkpoint, random_prompts, run
from worker.engine.cuda import runner as runner_module
from worker.engine.cuda.cascade import CascadeCost

NUM_TOKENS = 52
SAME_TOKENS = ("eager", "no overlap")  # as by default, to the last bit
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "eager": {"disable_cuda_graph": True},
    "no cascade": {"disable_cascade_attention": True},
    "no overlap": {"disable_overlap_schedule": True},
    "decodes apart": {"enable_mixed_chunk": False},
    "whole prompts": {"chunked_prefill_size": -1},
    "no prefix cache": {"disable_radix_cache": True},
    "small pages": {"page_size": 1},
    "one at a time": {"max_running_requests": 1},
}


@pytest.fixture(scope="module", params=["small", "wide"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    config = {"small": SMALL, "wide": WIDE}[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, config, seed=int(time.time()))
    return directory, config


@pytest.fixture(scope="module")
def answers(checkpoint: tuple[Path, dict[str, Any]]) -> dict[str, Run]:
    """What ran so far on this checkpoint, by way."""
    return {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
def test_logits_agree_with_transformers(
    checkpoint: tuple[Path, dict[str, Any]], answers: dict[str, Run], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "CASCADE_COST", CascadeCost(512, 0))
    monkeypatch.setattr(runner_module, "MIN_CASCADE_ROWS", 4)
    directory, config = checkpoint
    prompts = random_prompts(config, seed=1)
    result = answers[way] = run(directory, prompts, NUM_TOKENS, **WAYS[way])
    agreement = compare(directory, prompts, result)
    equal = sum(a == b for a, b in zip(answers.get("default", result).tokens, result.tokens, strict=True))
    print(f"\n{way}: {agreement}, {equal}/{len(prompts)} answers as by default, {result.cached_tokens} tokens cached")
    if way in SAME_TOKENS and "default" in answers:
        assert result.tokens == answers["default"].tokens
    assert agreement.positions > 2000
    assert agreement.relative_error < 2e-2
    assert agreement.same_top >= 0.99
    assert (result.cached_tokens > 0) == (way != "no prefix cache")
