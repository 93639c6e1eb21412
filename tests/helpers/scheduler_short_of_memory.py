"""A scheduler process, run in place of the worker's own, whose runner finds no memory for requests with certain seeds.

The fault is raised where a real one would be: in the model's forward, or when the result is fetched.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import torch

from worker import assembly
from worker.engine.batch import ForwardBatch, Int32s, NewWeights, PendingStep, RunnerInfo
from worker.engine.cuda.launched import LaunchedStep
from worker.engine.factory import create_runner
from worker.launch import scheduler_process

# Which step of a request with this seed fails, and where.
SEEDS = {
    1001: ("prefill", "launch"),
    1002: ("prefill", "result"),
    1003: ("decode", "launch"),
    1004: ("decode", "result"),
}
_DECODES_BEFORE = 5


class ShortOfMemory:
    """The CPU runner, seen as one that overlaps and fails."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._seeds: dict[int, int] = {}
        self._prompt_lens: dict[int, int] = {}

    @property
    def info(self) -> RunnerInfo:
        return dataclasses.replace(self._inner.info, overlaps=True)

    def launch(self, batch: ForwardBatch) -> PendingStep:
        where = self._fault(batch)
        if where == "launch":
            self._inner._model.forward = _run_out
        try:
            step = self._inner.launch(batch)
        finally:
            self._inner._model.__dict__.pop("forward", None)

        def fetch() -> Int32s:
            if where == "result":
                _run_out()
            tokens: Int32s = step.result().token_ids[batch.samples]
            return tokens

        return LaunchedStep(fetch, (), np.flatnonzero(batch.samples), batch, cuda_graph=False)

    def load_weights(self, model_path: str) -> NewWeights:
        weights: NewWeights = self._inner.load_weights(model_path)
        return weights

    def close(self) -> None:
        self._inner.close()

    def _fault(self, batch: ForwardBatch) -> str | None:
        self._seeds |= {admission.row: admission.seed for admission in batch.admissions}
        for index, row in enumerate(batch.rows.tolist()):
            length = int(batch.seq_lens[index])
            if index >= batch.num_decode:
                self._prompt_lens[row] = length
            phase, where = SEEDS.get(self._seeds[row], (None, None))
            decodes = length - self._prompt_lens[row]
            if (phase == "prefill" and decodes == 0) or (phase == "decode" and decodes > _DECODES_BEFORE):
                return where
        return None


def _run_out(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def _create_runner(*arguments: Any) -> ShortOfMemory:
    return ShortOfMemory(create_runner(*arguments))


if __name__ == "__main__":
    assembly.create_runner = _create_runner
    sys.exit(scheduler_process.main(sys.argv[1:]))
