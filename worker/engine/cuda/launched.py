"""A pass that is in the stream, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.batch import NOT_FINITE, ForwardBatch, Int32s, StepFailed, StepResult
from worker.engine.logprobs import ScoredTokens, in_order
from worker.engine.out_of_memory import step_failed


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Outcome i of `fetch`, which waits for the pass, belongs to sequence `sequences[i]` of `batch`."""

    fetch: Callable[[], Int32s]
    scored: Sequence[ScoredTokens]  # on their way to the host, there once `fetch` has returned
    sequences: npt.NDArray[np.int64]
    batch: ForwardBatch
    cuda_graph: bool
    vectors: torch.Tensor | None = None  # of an embedding model; on their way too

    def result(self) -> StepResult:
        try:
            outcomes = self.fetch()[: len(self.sequences)]
        except (MemoryError, RuntimeError) as error:
            raise step_failed(error, self.batch, where="GPU") from error
        if len(outcomes) and int(outcomes.min()) < 0:
            raise StepFailed(NOT_FINITE)
        vectors = None if self.vectors is None else self.vectors.numpy()
        if vectors is not None and not np.isfinite(vectors).all():
            raise StepFailed(NOT_FINITE)
        token_ids = np.full(len(self.batch.rows), -1, np.int32)
        token_ids[self.sequences] = outcomes
        return StepResult(token_ids, self.cuda_graph, in_order(self.batch, self.scored), vectors)
