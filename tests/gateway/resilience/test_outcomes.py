"""Which kind of failure an answer is, and how long back-pressure lasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.resilience.outcomes import RETRIED_STATUSES, Outcome, outcome_of, rest_of


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ((200, 201, 204, 302), Outcome.SERVED),
        ((400, 401, 403, 404, 408, 413, 422, 499), Outcome.CLIENT_FAULT),
        ((429, 503), Outcome.BACK_PRESSURE),
        ((500, 501, 502, 504, 599), Outcome.REPLICA_FAULT),
    ],
)
def test_three_kinds(statuses: tuple[int, ...], outcome: Outcome) -> None:
    assert {outcome_of(status) for status in statuses} == {outcome}


@given(st.integers(200, 599))
def test_what_is_the_client_s_fault_is_never_retried(status: int) -> None:
    if outcome_of(status) in (Outcome.SERVED, Outcome.CLIENT_FAULT):
        assert status not in RETRIED_STATUSES


@pytest.mark.parametrize(
    ("value", "rest_s"),
    [(b"7", 7), (b"0", 1), (b"3600", 10), (b"99999999999", 1), (b"-3", 1), (b"x", 1), (b"", 1), (b"2.5", 1)],
)
def test_retry_after_is_read_within_bounds(value: bytes, rest_s: float) -> None:
    assert rest_of([(b"date", b"9"), (b"retry-after", value)]) == rest_s


def test_without_retry_after_the_rest_is_short() -> None:
    assert rest_of([]) == 1
