"""Greedy answers of Transformers' own `generate`, with the gap between the two best logits of each step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

NEAR_TIE = 1e-3  # below it two correct fp32 implementations may choose differently
BATCH = 16


@dataclass(frozen=True)
class Answer:
    """Token ids and, for each, how far the chosen logit lay above the next best."""

    token_ids: list[int]
    gaps: list[float]


def reference_answers(model_dir: Path, prompts: list[list[int]], num_tokens: int) -> list[Answer]:
    """fp32 greedy answers of `num_tokens` tokens each, EOS ignored; prompts of similar length share a padded batch."""
    torch.set_num_threads(1)  # threads that wait for each other crawl when a test beside this one uses a core
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    answers: dict[int, Answer] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        answers.update(zip(group, _generate(model, [prompts[i] for i in group], num_tokens), strict=True))
    return [answers[i] for i in range(len(prompts))]


def _generate(model: torch.nn.Module, prompts: list[list[int]], num_tokens: int) -> list[Answer]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        output = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=num_tokens,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.stack([step.topk(2, dim=-1).values for step in output.logits])  # [tokens, batch, 2]
    gaps = (best[..., 0] - best[..., 1]).T.tolist()
    return [Answer(row[width:].tolist(), row_gaps) for row, row_gaps in zip(output.sequences, gaps, strict=True)]


@dataclass(frozen=True)
class Comparison:
    """How a set of answers compares: excused = answers that leave the reference at a near tie."""

    equal: int
    excused: int
    different: list[str]


def compare(expected: list[Answer], actual: list[list[int]]) -> Comparison:
    """Token for token; an answer that differs first at a near tie is excused from there on."""
    equal, excused, different = 0, 0, []
    for index, (reference, tokens) in enumerate(zip(expected, actual, strict=True)):
        if tokens == reference.token_ids:
            equal += 1
            continue
        at = next(i for i, pair in enumerate(zip(reference.token_ids, tokens, strict=True)) if pair[0] != pair[1])
        if reference.gaps[at] < NEAR_TIE:
            excused += 1
        else:
            different.append(f"prompt {index} differs at token {at} where the gap is {reference.gaps[at]:.4f}")
    return Comparison(equal, excused, different)
