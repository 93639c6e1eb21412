"""A runner without a model for very many requests: tokens are a formula of seed and position, computed for all rows at
once. It checks nothing; `fake_runner.py` does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.errors import UserError
from worker.engine.batch import ForwardBatch, NewWeights, RunnerInfo, StepResult
from worker.sampling_params import SamplingParams


def tokens_of(seed: npt.NDArray[np.int64], position: npt.NDArray[np.int64], vocab_size: int) -> npt.NDArray[np.int32]:
    """The output tokens at these positions (the first is 0) of requests with these seeds."""
    mixed = (seed * 0x9E3779B1 + position * 0x85EBCA77) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 15)) % vocab_size).astype(np.int32)


def outputs_of(seed: int, sampling: SamplingParams, info: RunnerInfo) -> list[int]:
    """All that a request gets."""
    assert sampling.max_new_tokens is not None and not sampling.min_new_tokens
    positions = np.arange(sampling.max_new_tokens, dtype=np.int64)
    tokens: list[int] = tokens_of(np.full(len(positions), seed), positions, info.vocab_size).tolist()
    if sampling.ignore_eos:
        return tokens
    stops = [index for index, token in enumerate(tokens) if token in info.eos_token_ids]
    return tokens[: stops[0] + 1] if stops else tokens


class FastStep:
    """Implements PendingStep."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class FastRunner:
    """Implements ModelRunner. `admitted` are the seeds of requests in the order in which they first started."""

    def __init__(self, info: RunnerInfo) -> None:
        self._info = info
        self._seed = np.zeros(info.max_rows, np.int64)
        self._position = np.zeros(info.max_rows, np.int64)
        self.admitted: dict[int, None] = {}
        self.most_admitted = 0  # in one step

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def launch(self, batch: ForwardBatch) -> FastStep:
        for admission in batch.admissions:
            self._seed[admission.row] = admission.seed
            self._position[admission.row] = len(admission.output_ids)
            self.admitted.setdefault(admission.seed)
        self.most_admitted = max(self.most_admitted, len(batch.admissions))
        tokens = tokens_of(self._seed[batch.rows], self._position[batch.rows], self._info.vocab_size)
        self._position[batch.rows] += batch.samples
        return FastStep(StepResult(np.where(batch.samples, tokens, -1).astype(np.int32)))

    def load_weights(self, model_path: str) -> NewWeights:
        raise UserError("There is no model.")

    def close(self) -> None:
        pass
