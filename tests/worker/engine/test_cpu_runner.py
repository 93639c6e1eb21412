"""Greedy tokens of the CPU runner against Transformers, in every regime a scheduler puts it through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers.runner_driver import RunnerDriver
from tests.helpers.tiny_models import TINY_CONFIGS, VOCAB_SIZE, TinyModel
from worker.config import WorkerSettings
from worker.engine.batch import StepFailed
from worker.engine.cpu_runner import CpuRunner
from worker.engine.factory import create_runner
from worker.sampling_params import SamplingParams

NUM_OUTPUTS = 6
TinyModels = Callable[[str], TinyModel]


def prompts(*lengths: int, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB_SIZE, n).tolist() for n in lengths]


def driver(tiny: TinyModel, **settings: Any) -> RunnerDriver:
    merged: dict[str, Any] = {"model_path": str(tiny.path), "device": "cpu", "cpu_threads": 1, "max_total_tokens": 2048}
    runner = create_runner(WorkerSettings(**(merged | settings)))
    assert isinstance(runner, CpuRunner)
    return RunnerDriver(runner)


def check(tiny: TinyModel, drive: RunnerDriver) -> None:
    for sequence in drive.sequences:
        assert sequence.outputs == tiny.greedy(sequence.tokens[: sequence.prompt_len], len(sequence.outputs))


@pytest.mark.parametrize("name", TINY_CONFIGS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_batch_with_chunked_prefill_and_mixed_passes(name: str, page_size: int, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    drive = driver(tiny, page_size=page_size)
    for prompt in prompts(3, 40, 17, 1):
        drive.add(prompt)
    drive.run(NUM_OUTPUTS, chunk=8)
    check(tiny, drive)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_alone_equals_together(page_size: int, tiny_model: TinyModels) -> None:
    tiny = tiny_model("qwen3")
    together = driver(tiny, page_size=page_size)
    for prompt in prompts(30, 5, 64, 16, 33):
        together.add(prompt)
        alone = driver(tiny, page_size=page_size)
        alone.add(prompt)
        alone.run(NUM_OUTPUTS)
        check(tiny, alone)
    together.run(NUM_OUTPUTS)
    check(tiny, together)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_rows_share_the_pages_of_a_prefix(page_size: int, tiny_model: TinyModels) -> None:
    tiny = tiny_model("llama")
    drive = driver(tiny, page_size=page_size)
    prefix, *tails = prompts(37, 5, 9, 20)
    first = drive.add(prefix + tails[0])
    drive.step()
    for tail in tails[1:]:
        sharing = drive.add(prefix + tail, share=first)
        assert sharing.num_computed == 37 // page_size * page_size > 0
    drive.run(NUM_OUTPUTS)
    check(tiny, drive)


def test_a_fully_cached_prompt_computes_only_its_last_token(tiny_model: TinyModels) -> None:
    tiny = tiny_model("mistral")
    drive = driver(tiny)
    (prompt,) = prompts(24)
    first = drive.add(prompt)
    drive.step()
    again = drive.add(prompt, share=first)
    assert again.num_computed == 23
    drive.run(NUM_OUTPUTS)
    check(tiny, drive)
    assert first.outputs == again.outputs


def test_a_row_and_its_pages_are_used_again(tiny_model: TinyModels) -> None:
    tiny = tiny_model("qwen2")
    drive = driver(tiny, page_size=4, max_total_tokens=96, max_running_requests=2)
    for seed in range(3):
        for row, prompt in enumerate(prompts(20, 31, seed=seed)):
            drive.add(prompt, row=row)
        drive.run(NUM_OUTPUTS)
        check(tiny, drive)
        for sequence in list(drive.sequences):
            drive.drop(sequence)


def test_a_retracted_request_goes_on_where_it_stopped(tiny_model: TinyModels) -> None:
    tiny = tiny_model("llama")
    sampling = SamplingParams(temperature=1.0, frequency_penalty=0.5, repetition_penalty=1.3)
    (prompt,) = prompts(12)
    whole = driver(tiny)
    whole.add(prompt, sampling=sampling, seed=11)
    whole.run(10)
    retracted = driver(tiny)
    first = retracted.add(prompt, sampling=sampling, seed=11)
    retracted.run(4)
    retracted.drop(first)
    again = retracted.add(first.tokens, row=3, sampling=sampling, seed=11, num_prior_outputs=4)
    retracted.run(6)
    assert first.outputs + again.outputs == whole.sequences[0].outputs


def test_decodes_of_very_different_lengths(tiny_model: TinyModels) -> None:
    tiny = tiny_model("llama")
    drive = driver(tiny)
    for prompt in prompts(240, 3, 200, 7, 2, 5, 220, 4):
        drive.add(prompt)
    drive.run(3)
    check(tiny, drive)


def test_stale_pages_do_not_reach_shorter_rows(tiny_model: TinyModels) -> None:
    """NaN left in a page that a shorter neighbour only pads with must not poison it."""
    tiny = tiny_model("llama")
    drive = driver(tiny)
    runner = drive.runner
    assert isinstance(runner, CpuRunner)
    for prompt in prompts(40, 10):
        drive.add(prompt)
    runner.pool.k[:, 1:] = runner.pool.v[:, 1:] = float("nan")
    drive.run(NUM_OUTPUTS)
    check(tiny, drive)


def test_seeded_sampling_does_not_depend_on_neighbours(tiny_model: TinyModels) -> None:
    tiny = tiny_model("qwen3")
    sampling = SamplingParams(temperature=0.9, top_p=0.9, top_k=40)
    ours, *others = prompts(9, 14, 22)
    alone = driver(tiny)
    alone.add(ours, sampling=sampling, seed=5)
    alone.run(12)
    together = driver(tiny)
    for prompt in others:
        together.add(prompt, sampling=SamplingParams(temperature=1.5), seed=5)
    together.add(ours, sampling=sampling, seed=5)
    together.run(12)
    assert together.sequences[-1].outputs == alone.sequences[0].outputs


def test_numbers_that_are_not_finite_fail_the_step_only(tiny_model: TinyModels) -> None:
    tiny = tiny_model("llama")
    drive = driver(tiny)
    runner = drive.runner
    assert isinstance(runner, CpuRunner)
    (prompt,) = prompts(8)
    poisoned = drive.add(prompt)
    drive.step()
    runner.pool.v[:, poisoned.pages[0]] = float("nan")
    with pytest.raises(StepFailed, match="not finite"):
        drive.step()
    drive.sequences.clear()
    drive.add(prompt, row=1)
    drive.run(NUM_OUTPUTS)
    check(tiny, drive)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (MemoryError(), StepFailed),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), StepFailed),
        (RuntimeError("shape mismatch"), RuntimeError),
    ],
)
def test_only_lack_of_memory_is_a_failed_step(
    fault: Exception, expected: type[Exception], tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = driver(tiny_model("llama"))
    drive.add([5, 6, 7])

    def run_out(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("worker.models.llama.LlamaModel.forward", run_out)
        with pytest.raises(expected):
            drive.step()


def test_info_states_what_was_loaded(tiny_model: TinyModels) -> None:
    tiny = tiny_model("llama")
    info = driver(tiny, page_size=4, max_running_requests=3, context_length=128).runner.info
    assert (info.device, info.dtype, info.overlaps) == ("cpu", "float32", False)
    assert (info.num_pages, info.page_size, info.max_rows, info.context_len) == (512, 4, 3, 128)
    assert info.eos_token_ids == (2,)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert info.weight_bytes == sum(p.nbytes for p in tiny.reference.parameters())
