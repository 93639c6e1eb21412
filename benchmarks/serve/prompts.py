"""The forms that prompts are sent in: token ids, text, or a chat. Workloads are made of ids and given a form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.serve.outcomes import Outcome
from common.model_tokenizer import ModelTokenizer

Ids = npt.NDArray[np.int32]
Chat = list[dict[str, Any]]
Prompt = Ids | str | Chat
Form = Callable[[Ids], Prompt]


def as_ids(ids: Ids) -> Prompt:
    """Token ids as they are."""
    return ids


def as_text(tokenizer: ModelTokenizer) -> Form:
    """Text of about as many tokens: where joined characters make other tokens, it is cut to the length asked for."""

    def form(ids: Ids) -> Prompt:
        text = tokenizer.decode(ids.tolist())
        again = tokenizer.encode(text, add_special_tokens=False)
        return tokenizer.decode(again[: len(ids)]) if len(again) > len(ids) else text

    return form


def as_chat(tokenizer: ModelTokenizer) -> Form:
    """A user's message of such text; the chat template adds its own tokens."""
    text = as_text(tokenizer)
    return lambda ids: [{"role": "user", "content": text(ids)}]


def extended(history: Prompt, new: Prompt) -> Prompt:
    """A conversation with its next piece, of the same form."""
    if isinstance(history, str) or isinstance(new, str):
        return f"{history}{new}"
    if isinstance(history, list) or isinstance(new, list):
        return [*history, *new]
    return np.concatenate([history, new])


def answered(history: Prompt, outcome: Outcome) -> Prompt:
    """A conversation with the answer that it was given."""
    answer: Prompt = outcome.text
    if isinstance(history, list):
        answer = [{"role": "assistant", "content": outcome.text}]
    elif not isinstance(history, str):
        answer = np.asarray(outcome.output_ids, np.int32)
    return extended(history, answer)


def size(prompt: Prompt) -> int:
    """Tokens, where the prompt is given in tokens; else 0, and the server has to tell."""
    return 0 if isinstance(prompt, str | list) else len(prompt)


def head(prompt: Prompt, tokens: int) -> Prompt:
    """The beginning of a prompt, for warming up: so many tokens, characters, or the whole chat."""
    return prompt if isinstance(prompt, list) else prompt[:tokens]


def random_ids(rng: np.random.Generator, count: int, vocabulary: Sequence[int]) -> Ids:
    """`count` ids with vocabulary[0] <= id < vocabulary[1]."""
    return rng.integers(vocabulary[0], vocabulary[1], count, dtype=np.int32)
