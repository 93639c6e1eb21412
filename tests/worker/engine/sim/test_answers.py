"""What a simulated model says depends on the sequence alone: not on chunks, batches, pages, cache or retractions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.runner_driver import RunnerDriver
from tests.helpers.sim_bench import EOS, VOCAB_SIZE, SimBench, h200, llama_8b, random_prompt
from worker.config import WorkerSettings
from worker.engine.sim.clock import VirtualClock
from worker.engine.sim.runner import SimRunner
from worker.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
IDS = np.arange(EOS + 1, VOCAB_SIZE, dtype=np.int32)


def driver(page_size: int = 16, answer_tokens: tuple[int, int] | None = None, shuffle_seed: int = 0) -> RunnerDriver:
    chosen = WorkerSettings(model_path="none", device="sim", page_size=page_size, max_total_tokens=4096)
    profile = h200(answer_tokens=answer_tokens)
    return RunnerDriver(SimRunner(chosen, llama_8b(), profile, IDS, VirtualClock()), shuffle_seed=shuffle_seed)


def answer(prompt: list[int], num_outputs: int = 12, **sampling: Any) -> list[int]:
    """Alone, in one chunk."""
    drive = driver()
    sequence = drive.add(prompt, sampling=SamplingParams(temperature=0.0, ignore_eos=True, **sampling))
    drive.run(num_outputs)
    return sequence.outputs


def test_prompts_that_differ_anywhere_have_other_answers() -> None:
    prompt = random_prompt(1, 40)
    variants = [prompt, prompt[::-1], prompt[:-1], [prompt[1], prompt[0], *prompt[2:]], [*prompt, prompt[-1]]]
    answers = [tuple(answer(variant)) for variant in variants]
    assert len(set(answers)) == len(variants)
    assert all(a[:3] != b[:3] for a, b in itertools.combinations(answers, 2))
    assert answer(prompt) == list(answers[0])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=5), st.integers(1, 30), st.sampled_from([1, 4, 16]))
def test_batching_and_chunks_change_nothing(lengths: list[int], chunk: int, page_size: int) -> None:
    drive = driver(page_size, shuffle_seed=chunk)
    prompts = [random_prompt(seed, length) for seed, length in enumerate(lengths)]
    sequences = [drive.add(prompt, sampling=GREEDY) for prompt in prompts]
    drive.run(20, chunk=chunk)
    assert [sequence.outputs[:12] for sequence in sequences] == [answer(prompt) for prompt in prompts]


def test_a_cached_prefix_with_outputs_changes_nothing() -> None:
    drive = driver(page_size=4)
    first = drive.add(random_prompt(0, 10), sampling=GREEDY)
    drive.run(30)
    prompt = [*first.tokens[:37], 5, 6, 7]
    second = drive.add(prompt, share=first, sampling=GREEDY)
    assert second.num_computed == 36  # of prompt and outputs
    drive.sequences.remove(first)
    drive.run(12)
    assert second.outputs == answer(prompt)


def test_retraction_changes_neither_tokens_nor_length() -> None:
    prompt, sampling = random_prompt(3, 20), SamplingParams(temperature=0.0)
    whole = driver(answer_tokens=(10, 60))
    sequence = whole.add(prompt, sampling=sampling)
    whole.run(80)
    length = sequence.outputs.index(EOS) + 1
    assert 10 <= length <= 60
    again = driver(answer_tokens=(10, 60))
    restarted = again.add([*prompt, *sequence.outputs[:7]], sampling=sampling, num_prior_outputs=7)
    again.run(70)
    assert restarted.outputs[: length - 7] == sequence.outputs[7:length]


def test_only_a_seed_of_the_requests_own_makes_another_answer() -> None:
    prompt = random_prompt(4, 30)
    assert answer(prompt, seed=1) == answer(prompt, seed=1)
    assert len({tuple(a) for a in (answer(prompt), answer(prompt, seed=0), answer(prompt, seed=1))}) == 3


def natural_lengths(num_requests: int, **sampling: Any) -> list[int]:
    bench = SimBench(h200(answer_tokens=(8, 512)))
    for seed in range(num_requests):
        bench.submit(random_prompt(seed, 8), 1000, **sampling)
    bench.finish()
    assert all(served.finish is not None for served in bench.served.values())
    return [len(served.token_ids) for served in bench.served.values()]


def test_answers_end_by_themselves_within_the_profiles_range() -> None:
    lengths = np.array(natural_lengths(300))
    assert lengths.min() >= 8 and lengths.max() <= 512
    assert 50 < np.median(lengths) < 80  # 64 is the middle of 8 and 512 by ratio


@pytest.mark.parametrize(("sampling", "lengths"), [({"ignore_eos": True}, {1000}), ({"min_new_tokens": 600}, {601})])
def test_ignore_eos_and_min_new_tokens_are_honoured(sampling: dict[str, Any], lengths: set[int]) -> None:
    assert set(natural_lengths(3, **sampling)) == lengths
