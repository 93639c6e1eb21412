"""Log-probabilities and token masks of the CUDA runner: against Transformers in fp32, and against what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.gpu.reference import SMALL, make_checkpoint, random_prompts
from tests.gpu.scored_runs import Scored, run_scored
from tests.helpers.fake_grammar import tokens_asked
from worker.sampling_params import LogprobsAsked, SamplingParams

VOCAB = int(SMALL["vocab_size"])
LISTED = (0, 17, VOCAB - 1)
ASKED = LogprobsAsked(top=5, token_ids=LISTED, prompt_from=1)
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "eager": {"disable_cuda_graph": True},
    "no overlap": {"disable_overlap_schedule": True},
    "no prefix cache": {"disable_radix_cache": True},
    "small chunks": {"chunked_prefill_size": 48},
    "one at a time": {"max_running_requests": 1},  # has kernels of its own for one decode alone
}
MEMORY: dict[str, Any] = {
    "max_total_tokens": 100_000,
    "max_running_requests": 32,
    "cuda_graph_max_bs": 32,
    "mem_fraction_static": 0.6,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    make_checkpoint(directory, SMALL, seed=5)
    return directory


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).to("cuda").eval()


def log_softmax(reference: Any, ids: list[int]) -> torch.Tensor:
    """fp32 [len(ids), vocab]: line i is the distribution of token i + 1."""
    with torch.inference_mode():
        lines: torch.Tensor = reference(torch.tensor([ids], device=reference.device)).logits[0].log_softmax(-1).cpu()
    return lines


def told_and_true(reference: Any, prompt: list[int], scored: Scored) -> np.ndarray:
    """All log-probabilities told, of tokens, of the best ones, of listed ones, beside the reference's: [n, 2]."""
    ids = prompt + scored.tokens
    lines = log_softmax(reference, ids)
    scores = scored.prompt_scores + scored.scores
    assert len(scores) == len(ids) - 1
    pairs = []
    for line, token, score in zip(lines, ids[1:], scores, strict=False):
        assert [value for _, value in score.top] == sorted((value for _, value in score.top), reverse=True)
        told = [(token, score.logprob), *score.top, *zip(LISTED, score.listed, strict=True)]
        pairs += [(value, float(line[id_])) for id_, value in told]
    return np.array(pairs)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", WAYS)
def test_scores_agree_with_transformers(checkpoint: Path, reference: Any, way: str) -> None:
    """Greedy, drawn and penalised answers together, beside some that ask for nothing."""
    prompts = random_prompts(SMALL, seed=2)[:16]
    kinds = [
        SamplingParams(max_new_tokens=16, temperature=0.0, ignore_eos=True, logprobs=ASKED),
        SamplingParams(max_new_tokens=16, temperature=0.9, top_p=0.9, ignore_eos=True, logprobs=ASKED, seed=3),
        SamplingParams(max_new_tokens=16, frequency_penalty=0.9, ignore_eos=True, logprobs=ASKED, seed=4),
        SamplingParams(max_new_tokens=16, temperature=0.0, ignore_eos=True),
    ]
    wishes = [kinds[i % 4] for i in range(len(prompts))]
    told = run_scored(checkpoint, prompts, wishes, **MEMORY | WAYS[way])
    pairs = []
    for prompt, wish, scored in zip(prompts, wishes, told, strict=True):
        if wish.logprobs is None:
            assert not scored.scores and not scored.prompt_scores
            continue
        if wish.greedy:
            assert [score.top[0][0] for score in scored.scores] == scored.tokens
            assert [score.top[0][1] for score in scored.scores] == [score.logprob for score in scored.scores]
        pairs.append(told_and_true(reference, prompt, scored))
    seen, true = np.concatenate(pairs).T
    error = float(np.linalg.norm(seen - true) / np.linalg.norm(true))
    print(f"\n{way}: {len(seen)} log-probabilities, relative error {error:.4f}, {abs(seen - true).max():.3f} at most")
    assert error < 2e-2  # bf16, as for the logits themselves


@pytest.mark.parametrize("way", ["default", "eager", "no overlap"])
def test_masks_decide_what_comes(checkpoint: Path, way: str) -> None:
    """Answers that a mask dictates, in a batch with free ones, which get what they get alone."""
    prompts = random_prompts(SMALL, seed=3)[:8]
    random = np.random.default_rng(7)
    forced = [[*random.integers(3, VOCAB, 20).tolist(), 2] for _ in prompts]
    free = SamplingParams(max_new_tokens=24, temperature=0.0, ignore_eos=True)
    wishes = [
        SamplingParams(max_new_tokens=40, temperature=0.8 * (i % 4), grammar=tokens_asked(forced[i])) if i % 2 else free
        for i in range(len(prompts))
    ]
    together = run_scored(checkpoint, prompts, wishes, **MEMORY | WAYS[way])
    alone = run_scored(checkpoint, prompts[::2], [free] * 4, **MEMORY | WAYS[way])
    assert [one.tokens for one in together[1::2]] == forced[1::2]
    same = sum(a.tokens == b.tokens for a, b in zip(together[::2], alone, strict=True))
    assert same >= 3  # batches of other sizes may round a near tie the other way


def test_biases_and_least_lengths(checkpoint: Path) -> None:
    prompts = random_prompts(SMALL, seed=4)[:3]
    wishes = [
        SamplingParams(max_new_tokens=8, temperature=0.0, logit_bias={77: 1000.0}),
        SamplingParams(max_new_tokens=8, seed=1, logit_bias={78: 1000.0}),
        SamplingParams(max_new_tokens=8, temperature=0.0, min_new_tokens=5, logit_bias={2: 1000.0}),
    ]
    told = run_scored(checkpoint, prompts, wishes, **MEMORY)
    assert [one.tokens for one in told[:2]] == [[77] * 8, [78] * 8]
    assert 2 not in told[2].tokens[:5] and told[2].tokens[5:] == [2]
