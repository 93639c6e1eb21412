"""A request's states and keys."""

from __future__ import annotations

import itertools

import pytest

from tests.helpers.builders import make_request
from worker.scheduler.request import RequestStatus as S
from worker.token_ids import pack_tokens

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


def test_a_retracted_request_fills_in_its_outputs_too() -> None:
    request = make_request([1, 2], max_new_tokens=5)
    request.refill(pack_tokens([1, 2, 7, 8]))
    assert request.fill_ids.tolist() == [1, 2, 7, 8] and request.kept_output_ids.tolist() == [7, 8]
    assert request.remaining_new_tokens == 3
    assert request.num_retractions == 1
