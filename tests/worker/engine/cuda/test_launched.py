from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.engine.test_out_of_memory import batch
from worker.engine.batch import Int32s, StepFailed
from worker.engine.cuda.launched import LaunchedStep


def _step(outcomes: list[int] | Exception, sequences: list[int]) -> LaunchedStep:
    def fetch() -> Int32s:
        if isinstance(outcomes, Exception):
            raise outcomes
        return np.array(outcomes, np.int32)

    return LaunchedStep(fetch, (), np.array(sequences, np.int64), batch(2, 4), cuda_graph=True)


def test_outcomes_go_to_their_sequences() -> None:
    result = _step([7, 9, 1], [2, 0]).result()  # the third is padding's
    assert result.token_ids.tolist() == [9, -1, 7]
    assert result.cuda_graph


def test_numbers_that_are_not_finite_fail_the_step() -> None:
    with pytest.raises(StepFailed, match="not finite"):
        _step([7, -1], [0, 1]).result()


def test_lack_of_memory_that_shows_late_fails_the_step() -> None:
    with pytest.raises(StepFailed, match="The GPU has no memory left") as caught:
        _step(torch.OutOfMemoryError("CUDA out of memory."), [0, 1]).result()
    assert caught.value.advice
    with pytest.raises(RuntimeError, match="illegal"):
        _step(RuntimeError("CUDA error: an illegal memory access was encountered"), [0, 1]).result()
