"""Retry budget and back-off, by numbers and by properties."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.resilience.retry import RetryBudget, RetryRules


def test_retry_budget_is_a_share_of_requests_with_a_floor() -> None:
    budget = RetryBudget(ratio=0.5, min_per_s=1)
    assert [budget.take(0.0) for _ in range(11)] == [True] * 10 + [False]
    for _ in range(4):
        budget.earn()
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert [budget.take(3.0) for _ in range(4)] == [True] * 3 + [False]
    for _ in range(1000):
        budget.earn()
    assert sum(budget.take(3.0) for _ in range(100)) == 10


def test_retries_can_be_forbidden() -> None:
    budget = RetryBudget(ratio=0, min_per_s=0)
    assert budget.take(0.0)
    assert not any(budget.take(float(second)) for second in range(100))


def test_backoff_grows_from_the_second_retry_on() -> None:
    rules = RetryRules(max_retries=9, initial_backoff_s=0.1, max_backoff_s=0.5, multiplier=2, jitter=0)
    assert [rules.backoff_s(retry, random.Random(0)) for retry in range(1, 7)] == [0, 0.1, 0.2, 0.4, 0.5, 0.5]


@given(
    retry=st.integers(1, 10_000),
    initial_s=st.floats(0, 10),
    max_s=st.floats(0, 100),
    multiplier=st.floats(1, 1e6),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_backoff_is_bounded_whatever_the_rules(
    retry: int, initial_s: float, max_s: float, multiplier: float, jitter: float, seed: int
) -> None:
    rules = RetryRules(
        max_retries=1, initial_backoff_s=initial_s, max_backoff_s=max_s, multiplier=multiplier, jitter=jitter
    )
    wait_s = rules.backoff_s(retry, random.Random(seed))
    assert 0 <= wait_s <= max_s
    if retry == 2:
        low, high = initial_s * (1 - jitter), initial_s * (1 + jitter)
        assert min(low, max_s) * 0.999 <= wait_s <= min(high, max_s) * 1.001
