"""The sampler against a plain NumPy account of what each parameter means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.batch import RowAdmission
from worker.engine.noise import uniform
from worker.engine.sampler import argmax, sample
from worker.engine.sampling_table import Masked, SamplingTable
from worker.sampling_params import SamplingParams

EOS = 2
VOCAB = 60


def make_table(*params: SamplingParams, vocab: int = VOCAB, outputs: tuple[int, ...] = ()) -> SamplingTable:
    """Row i holds params[i] with seed i, and has generated `outputs`."""
    table = SamplingTable(vocab_size=vocab, eos_token_ids=(EOS,), device=torch.device("cpu"))
    table.admit(RowAdmission(row, p, row, outputs) for row, p in enumerate(params))
    return table


def sample_rows(table: SamplingTable, logits: torch.Tensor) -> list[int]:
    rows = np.arange(len(logits), dtype=np.int32)
    tokens = sample(logits.clone(), table.batch(rows))
    table.record(rows, tokens)
    return [int(t) for t in tokens]


def expected_distribution(logits: np.ndarray, p: SamplingParams, outputs: tuple[int, ...] = ()) -> np.ndarray:
    """fp64 [vocab]: with which probability each token must come."""
    logits = logits.astype(np.float64)
    for token in set(outputs):
        logits[token] *= p.repetition_penalty if logits[token] < 0 else 1 / p.repetition_penalty
        logits[token] -= outputs.count(token) * p.frequency_penalty + p.presence_penalty
    if len(outputs) < p.min_new_tokens:
        logits[[EOS, *p.stop_token_ids]] = -np.inf
    for token, bias in p.logit_bias.items():
        logits[token] += bias
    if p.greedy:
        return np.eye(len(logits))[logits.argmax()]
    weights = np.exp((logits - logits.max()) / p.temperature)
    probs = weights / weights.sum()
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    keep = np.zeros(len(probs), bool)
    limit = p.top_k if p.top_k > 0 else len(probs)
    keep[order] = (np.arange(len(probs)) < limit) & (before <= p.top_p)
    keep &= probs >= p.min_p * probs.max()
    return np.where(keep, probs, 0) / probs[keep].sum()


CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy by top_k": SamplingParams(top_k=1),
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=2.5),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.7),
    "top_p of nothing": SamplingParams(top_p=1e-9),
    "min_p": SamplingParams(min_p=0.2),
    "joint": SamplingParams(temperature=1.3, top_k=12, top_p=0.8, min_p=0.05),
    "frequency": SamplingParams(frequency_penalty=0.9),
    "presence": SamplingParams(presence_penalty=1.7),
    "repetition": SamplingParams(repetition_penalty=1.8),
    "all penalties": SamplingParams(
        temperature=0.0, frequency_penalty=0.4, presence_penalty=0.3, repetition_penalty=1.5
    ),
    "rewards": SamplingParams(frequency_penalty=-0.6, presence_penalty=-0.5, repetition_penalty=0.7),
    "min_new_tokens": SamplingParams(min_new_tokens=9, stop_token_ids=(7, 8)),
    "logit_bias": SamplingParams(logit_bias={5: 3.0, 40: -100.0, 41: -1.5}, top_k=20),
    "greedy logit_bias": SamplingParams(temperature=0.0, logit_bias={3: 100.0, 4: 100.0}),
    "bias against ids held back": SamplingParams(min_new_tokens=9, logit_bias={EOS: 100.0}, presence_penalty=0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_those_of_the_definition(name: str) -> None:
    """4000 draws with different seeds: every token's share within five standard errors, impossible ones never."""
    params, outputs, draws = CASES[name], (3, 4, 4, 4, 9, 0), 4000
    logits = np.random.default_rng(4).normal(0, 2, VOCAB).astype(np.float32)
    logits[[EOS, 7]] = logits.max() + 0.5, logits.max() + 0.6  # so that holding them back shows
    table = SamplingTable(vocab_size=VOCAB, eos_token_ids=(EOS,), device=torch.device("cpu"))
    table.admit(RowAdmission(row, params, 1000 + row, outputs) for row in range(draws))
    tokens = sample_rows(table, torch.from_numpy(logits).expand(draws, -1))
    share = np.bincount(tokens, minlength=VOCAB) / draws
    probs = expected_distribution(logits, params, outputs)
    assert not share[probs == 0].any()
    assert (np.abs(share - probs) <= 5 * np.sqrt(probs * (1 - probs) / draws) + 2 / draws).all()


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
def test_the_least_repetition_penalty_leaves_numbers(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, repetition_penalty=5e-324)
    logits = torch.linspace(-30, 30, VOCAB)
    table = SamplingTable(vocab_size=VOCAB, eos_token_ids=(), device=torch.device("cpu"))
    table.admit([RowAdmission(0, params, 1, (VOCAB - 1, VOCAB - 2))])
    assert sample_rows(table, logits.unsqueeze(0)) == [VOCAB - 1]


def test_rows_of_a_batch_keep_their_own_parameters() -> None:
    logits = torch.randn((len(CASES), VOCAB), generator=torch.Generator().manual_seed(0)) * 2
    together = sample_rows(make_table(*CASES.values()), logits)
    alone = []
    for row, params in enumerate(CASES.values()):
        table = make_table(*[params] * (row + 1))
        alone.append(int(sample(logits[row : row + 1].clone(), table.batch(np.array([row], np.int32)))[0]))
    assert together == alone


def words_of(allowed: list[list[int]], vocab: int) -> np.ndarray:
    """Bits of TokenMasks, by the definition."""
    words = np.zeros((len(allowed), -(-vocab // 32)), np.uint32)
    for line, ids in zip(words, allowed, strict=True):
        for id_ in ids:
            line[id_ // 32] |= np.uint32(1 << id_ % 32)
    return words.view(np.int32)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=3)])
def test_masks_leave_only_what_they_allow(params: SamplingParams) -> None:
    """Rows 0 and 2 have a mask; the last word holds the sign bit and padding of the vocabulary."""
    draws, allowed = 400, [[5, 31, 59], [32]]
    logits = np.random.default_rng(4).normal(0, 2, VOCAB).astype(np.float32)
    limited = np.full(VOCAB, -np.inf, np.float32)
    limited[allowed[0]] = logits[allowed[0]]
    seen = np.zeros(VOCAB)
    for seed in range(draws):
        table = SamplingTable(vocab_size=VOCAB, eos_token_ids=(EOS,), device=torch.device("cpu"))
        table.admit(RowAdmission(row, params, 1000 * row + seed, ()) for row in range(3))
        masked = Masked.of([0, 2], words_of(allowed, VOCAB), vocab_size=VOCAB, device=torch.device("cpu"))
        batch = table.batch(np.arange(3, dtype=np.int32), masked)
        tokens = sample(torch.from_numpy(logits).repeat(3, 1), batch).tolist()
        assert tokens[2] == 32
        seen[tokens[0]] += 1
    probs = expected_distribution(limited, params)
    assert not seen[probs == 0].any()
    assert (np.abs(seen / draws - probs) <= 5 * np.sqrt(probs * (1 - probs) / draws) + 2 / draws).all()


def test_a_bias_may_bring_back_nothing_that_a_mask_forbids() -> None:
    table = make_table(SamplingParams(temperature=0.0, logit_bias={9: 100.0}))
    masked = Masked.of([0], words_of([[4, 6]], VOCAB), vocab_size=VOCAB, device=torch.device("cpu"))
    logits = torch.zeros((1, VOCAB))
    logits[0, 6] = 1.0
    assert sample(logits, table.batch(np.array([0], np.int32), masked)).tolist() == [6]


def test_penalties_count_what_is_sampled_on_the_way() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    logits = torch.zeros((1, VOCAB))
    logits[0, 5], logits[0, 6] = 2.5, 2.0
    table = make_table(params)
    tokens = [sample_rows(table, logits)[0] for _ in range(5)]
    assert tokens == [5, 6, 5, 6, 5]


def test_min_new_tokens_ends_after_that_many() -> None:
    logits = torch.zeros((1, VOCAB))
    logits[0, EOS], logits[0, 7], logits[0, 11] = 3.0, 2.0, 1.0
    table = make_table(SamplingParams(temperature=0.0, min_new_tokens=2, stop_token_ids=(7,)))
    assert [sample_rows(table, logits)[0] for _ in range(3)] == [11, 11, EOS]


def test_filters_reach_beyond_the_first_candidates() -> None:
    """A flat distribution over a large vocabulary: top_p must keep thousands of tokens, not the best 1024 only."""
    vocab = 4096
    draws = 600
    table = SamplingTable(vocab_size=vocab, eos_token_ids=(), device=torch.device("cpu"))
    params = SamplingParams(top_p=0.9)
    table.admit(RowAdmission(row, params, row, ()) for row in range(draws))
    logits = torch.linspace(0.01, 0, vocab).expand(draws, -1)
    tokens = np.array(sample_rows(table, logits))
    assert tokens.max() <= 0.9 * vocab + 20
    assert 0.6 < (tokens >= 1024).mean() < 0.85


def test_rows_that_are_not_finite_are_marked() -> None:
    logits = torch.zeros((4, VOCAB))
    logits[1, 9] = float("nan")
    logits[3, 9] = float("inf")
    tokens = sample_rows(make_table(CASES["greedy"], CASES["plain"], CASES["plain"], CASES["top_p"]), logits)
    assert [t == -1 for t in tokens] == [False, True, False, True]


@given(st.integers(1, 4), st.sampled_from([7, 256, 512, 1000]), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_argmax_is_the_first_largest(rows: int, vocab: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 50, (rows, vocab)).astype(np.float32)
    assert argmax(torch.from_numpy(values)).tolist() == values.argmax(axis=1).tolist()


def test_uniform_is_even_and_uncorrelated() -> None:
    grid = np.array([[uniform(seed, step) for step in range(200)] for seed in range(100)])
    assert ((grid >= 0) & (grid < 1)).all()
    counts, _ = np.histogram(grid, bins=20, range=(0, 1))
    assert (np.abs(counts - grid.size / 20) < 5 * np.sqrt(grid.size / 20)).all()
    for other in (np.roll(grid, 1, axis=0), np.roll(grid, 1, axis=1), np.roll(grid, (1, -1), axis=(0, 1))):
        assert abs(np.corrcoef(grid.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(grid.size)
    assert uniform(2**70 + 3, 5) == uniform((2**70 + 3) % 2**64, 5)
