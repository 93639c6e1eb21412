"""Arrivals: rates, bursts, ramps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serve import schedule
from benchmarks.serve.schedule import Ramp, RampStrategy

RATES = st.floats(0.01, 1000)
RAMPS = st.builds(Ramp, st.sampled_from(RampStrategy), RATES, RATES)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@given(st.integers(0, 300), RATES, st.floats(0.05, 50), RAMPS)
def test_arrivals_begin_at_once_and_never_go_back(count: int, rate: float, burstiness: float, ramp: Ramp) -> None:
    for times in (
        schedule.all_at_once(count),
        schedule.at_rate(rng(), count, rate, burstiness),
        schedule.ramped(rng(), count, ramp, burstiness),
    ):
        assert len(times) == count
        assert np.isfinite(times).all()
        assert not count or times[0] == 0
        assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_asked_for(burstiness: float) -> None:
    gaps = np.diff(schedule.at_rate(rng(), 20_000, 50.0, burstiness))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)


@given(RAMPS, st.floats(10, 10_000))
def test_a_ramp_is_the_inverse_of_its_rate(ramp: Ramp, total: float) -> None:
    """The slope of expected arrivals over time is the rate asked for, from the start to the end."""
    counts = np.linspace(0, total, 2001)
    times = ramp.when(counts, total)
    assert times[-1] == pytest.approx(ramp.duration_s(total), rel=1e-6)
    rates = np.diff(counts) / np.diff(times)
    share = (times[1:] + times[:-1]) / 2 / times[-1]
    if ramp.strategy is RampStrategy.LINEAR:
        wanted = ramp.start_per_s + (ramp.end_per_s - ramp.start_per_s) * share
    else:
        wanted = ramp.start_per_s * (ramp.end_per_s / ramp.start_per_s) ** share
    middle = slice(200, -200)  # near its ends a steep ramp is coarse in 2,000 steps
    np.testing.assert_allclose(rates[middle], wanted[middle], rtol=0.02)


def test_a_ramp_that_does_not_grow_is_a_rate() -> None:
    for strategy in RampStrategy:
        flat = schedule.ramped(rng(), 50, Ramp(strategy, 4.0, 4.0), 1.0)
        assert flat == pytest.approx(schedule.at_rate(rng(), 50, 4.0, 1.0))
