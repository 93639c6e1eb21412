"""Every token of the engine's answers against an account of sampling in NumPy over Transformers' logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worker import Engine
from worker.engine.noise import uniform

EOS = 2
LENGTH = 24
PROMPT = [5, 80, 11, 200, 7, 7, 91]


@pytest.fixture(scope="module")
def reference(chat_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(chat_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine(chat_model: Path) -> Iterator[Engine]:
    with Engine(model_path=str(chat_model), max_total_tokens=2000, cpu_threads=1, chunked_prefill_size=4) as engine:
        yield engine


def logits_after(reference: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = reference(torch.tensor([ids])).logits[0, -1].double().numpy()
    return logits


def adjusted(logits: np.ndarray, outputs: list[int], p: dict[str, Any]) -> np.ndarray:
    """Penalties count generated tokens only; then ids held back, then biases."""
    for token in set(outputs):
        factor = p.get("repetition_penalty", 1.0)
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        logits[token] -= outputs.count(token) * p.get("frequency_penalty", 0.0) + p.get("presence_penalty", 0.0)
    if len(outputs) < p.get("min_new_tokens", 0):
        logits[[EOS, *p.get("stop_token_ids", [])]] = -np.inf
    for token, bias in p.get("logit_bias", {}).items():
        logits[int(token)] += bias
    return logits


def kept(probs: np.ndarray, p: dict[str, Any]) -> np.ndarray:
    """Which tokens pass top_k, top_p and min_p, each judged on the whole distribution."""
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    keep = np.zeros(len(probs), bool)
    keep[order] = (np.arange(len(probs)) < p.get("top_k", len(probs))) & (before <= p.get("top_p", 1.0))
    return keep & (probs >= p.get("min_p", 0.0) * probs.max())


def expected(reference: Any, p: dict[str, Any], seed: int) -> list[int]:
    """The answer, token by token: the distribution inverted at the number that seed and place give."""
    outputs: list[int] = []
    while len(outputs) < LENGTH:
        logits = adjusted(logits_after(reference, PROMPT + outputs), outputs, p)
        if p.get("temperature", 1.0) == 0:
            token = int(logits.argmax())
        else:
            weights = np.exp((logits - logits.max()) / p.get("temperature", 1.0))
            weights = np.where(kept(weights / weights.sum(), p), weights, 0.0).cumsum()
            token = int(np.searchsorted(weights, uniform(seed, len(outputs)) * weights[-1], side="right"))
        outputs.append(token)
        stops = {*p.get("stop_token_ids", []), *([] if p.get("ignore_eos") else [EOS])}
        if token in stops and len(outputs) > p.get("min_new_tokens", 0):
            break
    return outputs


WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "plain": {},
    "hot": {"temperature": 1.7, "ignore_eos": True},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.6, "temperature": 1.3},
    "min_p": {"min_p": 0.3},
    "all filters": {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8},
    "frequency": {"frequency_penalty": 1.9},
    "presence": {"presence_penalty": 2.0, "temperature": 0.2},
    "repetition": {"repetition_penalty": 1.9, "temperature": 0},
    "rewards": {"frequency_penalty": -1.5, "presence_penalty": -0.5, "repetition_penalty": 0.6},
    "biases": {"logit_bias": {"9": 3.5, "40": -100, "2": 2.0}},
    "a bias that decides": {"temperature": 0, "logit_bias": {"77": 100}},
    "held back": {"min_new_tokens": 9, "logit_bias": {"2": 6.0, "30": 6.0}, "stop_token_ids": [30]},
    "held back and penalised": {"min_new_tokens": 12, "frequency_penalty": 0.7, "logit_bias": {"2": 5.0}},
    "stop ids": {"stop_token_ids": [9, 30, 61, 100], "temperature": 1.5, "ignore_eos": True},
}


def test_each_answer_is_the_references_alone_and_among_others(engine: Engine, reference: Any) -> None:
    """Seeds, filters, penalties, biases, ids held back: exactly these tokens, whatever else is in the batch."""
    params = [{"max_new_tokens": LENGTH, "sampling_seed": 100 + i} | p for i, p in enumerate(WISHES.values())]
    together = engine.generate(input_ids=[PROMPT] * len(params), sampling_params=params)
    assert isinstance(together, list)
    for i, (name, wishes) in enumerate(WISHES.items()):
        wanted = expected(reference, wishes, 100 + i)
        alone = engine.generate(input_ids=PROMPT, sampling_params=params[i])
        assert isinstance(alone, dict)
        assert together[i]["output_ids"] == wanted, name
        assert alone["output_ids"] == wanted, name
        ended = wanted[-1] in {EOS, *wishes.get("stop_token_ids", [])} and len(wanted) < LENGTH
        assert alone["meta_info"]["finish_reason"]["type"] == ("stop" if ended else "length")


def test_copies_take_the_seeds_that_follow(engine: Engine, reference: Any) -> None:
    params = {"max_new_tokens": LENGTH, "sampling_seed": 41, "n": 3, "temperature": 1.5}
    answers = engine.generate(input_ids=[PROMPT, PROMPT[:3]], sampling_params=params)
    assert isinstance(answers, list) and len(answers) == 6
    wanted = [expected(reference, {"temperature": 1.5}, 41 + i) for i in range(3)]
    assert [answer["output_ids"] for answer in answers[:3]] == wanted


def test_without_a_seed_answers_differ(engine: Engine) -> None:
    params = {"max_new_tokens": LENGTH, "n": 4, "temperature": 1.5}
    answers = engine.generate(input_ids=PROMPT, sampling_params=params)
    assert len({tuple(answer["output_ids"]) for answer in answers}) == 4  # type: ignore[index]
