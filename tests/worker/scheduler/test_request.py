"""A request's states and keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.helpers.builders import make_request
from worker.scheduler.request import RequestStatus as S

LEGAL = {
    (S.WAITING, S.PREFILLING),
    (S.WAITING, S.FINISHED),
    (S.WAITING, S.ABORTED),
    (S.PREFILLING, S.RUNNING),
    (S.PREFILLING, S.WAITING),
    (S.PREFILLING, S.FINISHED),
    (S.PREFILLING, S.ABORTED),
    (S.RUNNING, S.WAITING),
    (S.RUNNING, S.FINISHED),
    (S.RUNNING, S.ABORTED),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)), ids=lambda status: status.name)
def test_only_legal_transitions_happen(before: S, after: S) -> None:
    request = make_request([1])
    request.status = before
    if (before, after) in LEGAL:
        request.move_to(after)
        assert request.status is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} -> {after.name}"):
            request.move_to(after)


def test_keys_run_from_the_prompt_into_the_outputs() -> None:
    request = make_request([1, 2, 3])
    request.output_ids += [7, 8]
    assert np.frombuffer(request.key_of(2), np.int32).tolist() == [1, 2]
    assert np.frombuffer(request.key_of(4), np.int32).tolist() == [1, 2, 3, 7]
    assert request.fill_ids.tolist() == [1, 2, 3]


def test_a_retracted_request_fills_in_its_outputs_too() -> None:
    request = make_request([1, 2], max_new_tokens=5)
    request.output_ids += [7, 8]
    request.refill()
    assert request.fill_ids.tolist() == [1, 2, 7, 8]
    assert request.remaining_new_tokens == 3
    assert request.num_retractions == 1
