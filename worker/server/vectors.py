"""Embeddings as clients get them: cut to the dimensions they ask for, then made 1 long. Server and offline engine share
it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from worker.engine.batch import Float32s
from worker.ipc.messages import SchedulerReady
from worker.sampling_params import SamplingParams
from worker.server.answers import Answer
from worker.server.errors import RequestFault
from worker.server.prompts import Ask

_PROMPT_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0)


def asks_for(inputs: Sequence[list[int]], param: str, *, single: bool) -> list[Ask]:
    """What the scheduler is asked for: `inputs` come from the field `param`, which is one of them or a list."""
    return [Ask(ids, _PROMPT_ONLY, param if single else f"{param}[{i}]") for i, ids in enumerate(inputs)]


def check_dimensions(dimensions: int | None, ready: SchedulerReady) -> None:
    """Raise RequestFault (400) if the model's vectors have fewer."""
    if dimensions is not None and dimensions > ready.embedding_size:
        text = f"dimensions is {dimensions}, but the model's embeddings have {ready.embedding_size}."
        raise RequestFault(400, text, param="dimensions")


def unit_vectors(answers: Sequence[Answer], dimensions: int | None) -> Float32s:
    """[answers, dimensions] of ended answers that are no faults, in order. A vector of zeros stays one."""
    vectors = np.stack([np.frombuffer(answer.vector, np.float32)[:dimensions] for answer in answers])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    unit: Float32s = (vectors / lengths).astype(np.float32)
    return unit


def native_objects(answers: Sequence[Answer], dimensions: int | None, now_s: float) -> list[dict[str, Any]]:
    """What /encode answers for each, the embedding as a float32 array."""
    vectors = unit_vectors(answers, dimensions)
    return [
        {"embedding": vector, "meta_info": answer.meta_info(now_s)}
        for answer, vector in zip(answers, vectors, strict=True)
    ]


def as_base64(vector: Float32s) -> str:
    """float32, little-endian, as OpenAI's clients read it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
