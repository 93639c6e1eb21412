"""The token bucket, by properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.bucket import TokenBucket


@given(
    st.floats(0.1, 1000),
    st.floats(0, 50),
    st.lists(st.floats(0, 3), min_size=1, max_size=200),
)
def test_never_more_than_burst_and_rate_allow(rate_per_s: float, burst: float, gaps_s: list[float]) -> None:
    bucket, now_s, taken = TokenBucket(rate_per_s, burst), 0.0, 0
    for gap_s in gaps_s:
        now_s += gap_s
        taken += bucket.take(now_s)
        assert taken <= max(burst, 1.0) + now_s * rate_per_s + 1e-6


@given(st.floats(0.1, 1000), st.integers(1, 20))
def test_the_wait_it_tells_suffices(rate_per_s: float, burst: int) -> None:
    bucket = TokenBucket(rate_per_s, burst)
    assert [bucket.take(5.0) for _ in range(burst + 1)] == [True] * burst + [False]
    wait_s = bucket.wait_s(5.0)
    assert wait_s == pytest.approx(1 / rate_per_s, rel=1e-6)
    assert not bucket.take(5.0 + wait_s * 0.5)
    assert bucket.take(5.0 + wait_s * 1.001)
