"""Texts that users write, slices, and which sizes are tried."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from deploy.plan.fleet import Served
from deploy.plan.lengths import parse_lengths
from deploy.plan.measured import measured
from deploy.plan.search import first_guess, next_sizes
from deploy.plan.slices import Slice, slices_of
from deploy.plan.targets import parse_targets
from deploy.plan.workload import DescribedWorkload
from tests.helpers.planned_fleets import ask, small_spec

RNG = np.random.default_rng(1)


def test_lengths_have_three_forms() -> None:
    assert set(parse_lengths("7", flag="--x").draw(RNG, 50)) == {7}
    uniform = parse_lengths("10-20", flag="--x").draw(RNG, 1000)
    assert (uniform.min(), uniform.max()) == (10, 20)
    skewed = parse_lengths("p50=900,p90=2700", flag="--x").draw(RNG, 20_000)
    assert np.percentile(skewed, 50) == pytest.approx(900, rel=0.05)
    assert np.percentile(skewed, 90) == pytest.approx(2700, rel=0.05)


@pytest.mark.parametrize("text", ["", "a", "0", "20-10", "p50=9,p90=3", "p50=0,p90=3", "-5"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--x"):
        parse_lengths(text, flag="--x")


def test_targets_are_read_and_judged() -> None:
    late, gap = parse_targets(["ttft_p90=2s", "tpot_p99.5=50ms"])
    assert (late.name, gap.name, gap.limit_s) == ("ttft_p90=2s", "tpot_p99.5=50ms", 0.05)
    served = [Served(ask(0.0, 10, 3), ttft_s=1.0 + index / 10, latency_s=1.05 + index / 10) for index in range(19)]
    served.append(Served(ask(0.0, 10, 3), fault="too long"))
    seen = measured(served, 10.0)
    assert late.attainment(seen) == 11 / 20 and not late.met(late.attainment(seen))
    assert gap.attainment(seen) == 19 / 20
    assert (seen.requests_per_s, seen.output_tokens_per_s, seen.faults) == (1.9, 5.7, {"too long": 1})


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    (gap,) = parse_targets(["tpot_p90=1ms"])
    seen = measured([Served(ask(0.0, 10, 1), ttft_s=1.0, latency_s=1.0)], 1.0)
    assert gap.attainment(seen) == 1.0 and seen.percentile_s("tpot", 90) == 0.0


@pytest.mark.parametrize("text", ["ttft=2s", "ttft_p90=2", "ttft_p100=2s", "itl_p90=2s", "ttft_p90=0s", "ttft_p0=1s"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--slo"):
        parse_targets([text])


def test_a_short_load_is_run_whole() -> None:
    assert slices_of(100.0, 50, 50) == slices_of(100.0, 50, 0) == [Slice(0.0, 0.0, 100.0)]


@given(
    st.floats(60.0, 1e6),
    st.integers(1, 10**7),
    st.integers(1, 10**5),
)
def test_slices_lie_in_order_in_the_load_and_warm_up_first(duration_s: float, total: int, sample: int) -> None:
    slices = slices_of(duration_s, total, sample)
    ends = [0.0] + [part.end_s for part in slices]
    for before, part in zip(ends, slices, strict=False):
        assert before - 1e-6 <= part.begin_s <= part.count_s < part.end_s <= duration_s + 1e-6
    if len(slices) > 1:
        assert all(part.begin_s < part.count_s for part in slices)
        assert sum(part.end_s - part.begin_s for part in slices) >= duration_s * sample / total * 0.99


@given(
    least=st.integers(1, 90),
    low=st.integers(1, 20),
    more=st.integers(0, 80),
    start=st.integers(1, 99),
    at_once=st.integers(1, 4),
)
def test_the_search_ends_at_the_smallest_size_that_is_enough(
    least: int, low: int, more: int, start: int, at_once: int
) -> None:
    high = low + more
    enough: dict[int, bool] = {}
    while sizes := next_sizes(enough, low=low, high=high, start=start, at_once=at_once):
        assert 1 <= len(sizes) <= at_once and not set(sizes) & set(enough)
        assert all(low <= size <= high for size in sizes)
        enough |= {size: size >= least for size in sizes}
    good = [size for size, is_enough in enough.items() if is_enough]
    assert min(good, default=None) == (max(least, low) if least <= high else None)
    assert len(enough) <= 17 * at_once


def test_the_first_guess_grows_with_the_load() -> None:
    def guess(rate: float) -> int:
        prompt, output = parse_lengths("1000", flag=""), parse_lengths("200", flag="")
        load = DescribedWorkload(
            rate_per_s=rate, duration_s=60.0, prompt=prompt, output=output, shared_share=0, prefixes=1, seed=1
        )
        return first_guess(small_spec(speed=0.1), load)

    assert 1 <= guess(1) < guess(10) < guess(100)
    assert guess(100) == pytest.approx(10 * guess(10), rel=0.2)
