"""Log-probabilities of the whole engine against Transformers, fp32 on the CPU, in every way a prompt is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from worker import Engine

NEAR = 1e-4
GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
PROMPT = [5, 80, 11, 200, 7, 7, 91, 260, 33, 12, 150, 41, 88, 9, 14, 279, 3, 61, 20, 100]
LISTED = [0, 7, 288]


@pytest.fixture(scope="module")
def reference(chat_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(chat_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine(chat_model: Path) -> Iterator[Engine]:
    """Prompts are computed in chunks of eight, on pages of four tokens."""
    options = {"max_total_tokens": 400, "cpu_threads": 1, "page_size": 4, "chunked_prefill_size": 8}
    with Engine(model_path=str(chat_model), **options) as engine:
        yield engine


def log_softmax(reference: Any, ids: Sequence[int]) -> torch.Tensor:
    """fp32 [len(ids), vocab]: line i is the distribution of token i + 1."""
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([list(ids)])).logits[0]
    return logits.log_softmax(-1)


def ask(engine: Engine, prompt: list[int] = PROMPT, **fields: Any) -> Any:
    fields = {"sampling_params": GREEDY, "return_logprob": True} | fields
    return engine.generate(input_ids=prompt, **fields)


def check_lists(info: dict[str, Any], kind: str, expected: torch.Tensor, ids: Sequence[int], top: int) -> None:
    """The lists of one kind are those of the reference: the tokens themselves, the best ones in order, listed ones."""
    for line, token, own, best, listed in zip(
        expected,
        ids,
        info[f"{kind}_token_logprobs"],
        info[f"{kind}_top_logprobs"],
        info[f"{kind}_token_ids_logprobs"],
        strict=True,
    ):
        assert own == (pytest.approx(float(line[token]), abs=NEAR), token, None)
        assert [value for value, _, _ in best] == pytest.approx(line.topk(top).values.tolist(), abs=NEAR)
        assert all(value == pytest.approx(float(line[id_]), abs=NEAR) for value, id_, _ in best)
        assert [id_ for _, id_, _ in listed] == LISTED
        assert [value for value, _, _ in listed] == pytest.approx([float(line[id_]) for id_ in LISTED], abs=NEAR)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 40, "min_p": 0.01, "sampling_seed": 3},
        {"temperature": 1.4, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "sampling_seed": 4},
        {"min_new_tokens": 12, "stop_token_ids": [9]},
    ],
    ids=["greedy", "filtered", "penalised", "held back"],
)
def test_answers_are_scored_by_the_models_own_distribution(
    engine: Engine, reference: Any, params: dict[str, Any]
) -> None:
    """Whatever chose the token."""
    answer = ask(engine, sampling_params=GREEDY | params, top_logprobs_num=5, token_ids_logprob=LISTED)
    outputs = answer["output_ids"]
    expected = log_softmax(reference, PROMPT + outputs)[len(PROMPT) - 1 : -1]
    check_lists(answer["meta_info"], "output", expected, outputs, top=5)
    assert answer["meta_info"]["input_token_logprobs"] == []


@pytest.mark.parametrize("start", [0, 1, 7, 8, 17, 18, 19])
def test_prompts_are_scored_with_and_without_the_prefix_cache(engine: Engine, reference: Any, start: int) -> None:
    engine.flush_cache()
    expected = log_softmax(reference, PROMPT)[start:-1]
    fields = {"logprob_start_len": start, "top_logprobs_num": 3, "token_ids_logprob": LISTED}
    cold, warm = (ask(engine, **fields)["meta_info"] for _ in range(2))
    for info in (cold, warm):
        lists = {name: value[1:] for name, value in info.items() if name.startswith("input_")}
        assert info["input_token_logprobs"][0] == (None, PROMPT[start], None)
        assert info["input_top_logprobs"][0] is None and info["input_token_ids_logprobs"][0] is None
        check_lists(lists, "input", expected, PROMPT[start + 1 :], top=3)
    assert cold["cached_tokens"] == 0
    assert warm["cached_tokens"] == min(start, len(PROMPT) - 1) // 4 * 4  # whole pages before the first one scored


def test_a_batch_scores_each_prompt_as_it_asks(engine: Engine, reference: Any) -> None:
    prompts = [PROMPT, PROMPT[:3], PROMPT[::-1]]
    fields = {"return_logprob": [True, False, True], "logprob_start_len": [0, 0, 5], "top_logprobs_num": [2, 0, 0]}
    first, second, third = ask(engine, prompts, **fields)  # type: ignore[arg-type]
    assert "output_token_logprobs" not in second["meta_info"]
    assert len(first["meta_info"]["input_top_logprobs"]) == len(PROMPT)
    assert "input_top_logprobs" not in third["meta_info"]
    for answer, prompt, start in ((first, prompts[0], 0), (third, prompts[2], 5)):
        lines = log_softmax(reference, prompt + answer["output_ids"])
        scored = answer["meta_info"]["input_token_logprobs"][1:] + answer["meta_info"]["output_token_logprobs"]
        ids = (prompt + answer["output_ids"])[start + 1 :]
        assert [id_ for _, id_, _ in scored] == ids
        expected = [float(line[id_]) for line, id_ in zip(lines[start:], ids, strict=False)]
        assert [value for value, _, _ in scored] == pytest.approx(expected, abs=NEAR)


def test_copies_share_the_part_of_a_prompt_that_is_not_scored(engine: Engine, reference: Any) -> None:
    prompt = [11 * place % 280 + 3 for place in range(60)]
    answers = ask(engine, [prompt] * 3, logprob_start_len=40)  # type: ignore[arg-type]
    assert sorted(answer["meta_info"]["cached_tokens"] for answer in answers) == [0, 40, 40]
    for answer in answers:
        ids = prompt + answer["output_ids"]
        scored = answer["meta_info"]["input_token_logprobs"][1:] + answer["meta_info"]["output_token_logprobs"]
        lines = log_softmax(reference, ids)[40:-1]
        expected = lines.gather(1, torch.tensor(ids[41:]).unsqueeze(1)).squeeze(1)
        assert [value for value, _, _ in scored] == pytest.approx(expected.tolist(), abs=NEAR)


def test_scores_survive_retractions(chat_model: Path, reference: Any) -> None:
    """A pool too small for all: some are retracted, and compute their prompts again."""
    prompts = [[(7 * i + j) % 280 + 3 for j in range(30)] for i in range(6)]
    params = GREEDY | {"max_new_tokens": 40}
    options = {"max_total_tokens": 200, "cpu_threads": 1, "schedule_conservativeness": 0.01, "chunked_prefill_size": 16}
    with Engine(model_path=str(chat_model), **options) as engine:
        answers = ask(engine, prompts, sampling_params=params, logprob_start_len=0)  # type: ignore[arg-type]
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = prompt + answer["output_ids"]
        scored = answer["meta_info"]["input_token_logprobs"][1:] + answer["meta_info"]["output_token_logprobs"]
        assert [id_ for _, id_, _ in scored] == ids[1:]
        expected = log_softmax(reference, ids)[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
        assert [value for value, _, _ in scored] == pytest.approx(expected.tolist(), abs=NEAR)


def test_a_prompt_alone_can_be_scored(engine: Engine, reference: Any) -> None:
    answer = ask(engine, sampling_params={"max_new_tokens": 0}, logprob_start_len=0, return_text_in_logprobs=True)
    assert (answer["output_ids"], answer["text"]) == ([], "")
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    scored = answer["meta_info"]["input_token_logprobs"]
    expected = log_softmax(reference, PROMPT)[:-1].gather(1, torch.tensor(PROMPT[1:]).unsqueeze(1)).squeeze(1)
    assert [value for value, _, _ in scored[1:]] == pytest.approx(expected.tolist(), abs=NEAR)
    assert all(isinstance(text, str) for _, _, text in scored)
