"""Rows, points and differences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.messages import Row, Slice, Totals
from gateway.console.view import Series, Speeds, changed, quantile
from gateway.fleet.worker import LoadReport

ROW = Row("http://a", "a", "m", "ready", "", "closed", False, 0, 0, 0, 0.0, None, 0.0, 0.0)


def slice_of(ttfts_s: list[float] | None = None, **totals: Any) -> Slice:
    return Slice(0, [], ttfts_s or [], {"http://a": 2}, 1, Totals(**totals))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5))), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)))
)
def test_changes_make_the_new_rows_of_the_old(old: list[tuple[int, int]], new: list[tuple[int, int]]) -> None:
    def table(pairs: list[tuple[int, int]]) -> dict[str, Row]:
        return {f"u{n}": msgspec.structs.replace(ROW, url=f"u{n}", in_flight=load) for n, load in pairs}

    before, after = table(old), table(new)
    seen = {url: msgspec.structs.asdict(row) for url, row in before.items() if url in after}
    for change in changed(before, after):
        seen[change["url"]] = seen.get(change["url"], {}) | change
    assert seen == {url: msgspec.structs.asdict(row) for url, row in after.items()}
    assert all(len(change) > 1 for change in changed(before, after))


def test_rates_are_differences_over_all_processes() -> None:
    series = Series()
    first = series.point(10.0, {0: slice_of(requests=100), 1: slice_of(requests=7, errors=7)}, {})
    assert (first.requests_per_s, first.errors_per_s, first.in_flight, first.queued) == (0, 0, 4, 2)
    now = {0: slice_of(requests=104, choices={"load": 4}), 1: slice_of(requests=13, errors=8, choices={"load": 1})}
    point = series.point(12.0, now, {"a": msgspec.structs.replace(ROW, tokens_per_s=5.0), "b": ROW})
    assert (point.requests_per_s, point.errors_per_s, point.tokens_per_s) == (5.0, 0.5, 5.0)
    assert point.reasons == {"load": 5}


def test_tokens_a_second_are_counted_over_five_seconds() -> None:
    """Also where answers are so short that a worker calls its throughput 0."""
    speeds = Speeds()
    assert speeds.of("a", None) is None

    def told(at: float, generated: int, own: float = 0.0) -> float | None:
        return speeds.of("a", LoadReport(generated_tokens=generated, gen_throughput=own, received_s=at))

    assert [told(float(second), 200 * second) for second in range(1, 9)] == [0.0] + 7 * [200.0]
    assert [told(float(second), 1600) for second in range(9, 14)] == [160.0, 120.0, 80.0, 40.0, 0.0]
    assert told(13.0, 1600) == 0.0  # no new report
    assert told(14.0, 30, own=7.0) == 7.0  # a new life
    assert told(15.0, 130) == 100.0
    assert told(100.0, 9000, own=3.0) == 3.0  # nobody looked meanwhile
    assert speeds.of("b", LoadReport(gen_throughput=5.0)) == 5.0  # does not count
    speeds.keep(["b"])
    assert told(101.0, 9100, own=1.0) == 1.0


def test_a_process_that_started_anew_counts_from_there() -> None:
    series = Series()
    series.point(10.0, {0: slice_of(requests=100)}, {})
    assert series.point(11.0, {0: slice_of(requests=3)}, {}).requests_per_s == 0
    assert series.point(12.0, {0: slice_of(requests=5)}, {}).requests_per_s == 2
    assert series.point(13.0, {0: slice_of(requests=5), 1: slice_of(requests=50)}, {}).requests_per_s == 0


def test_ttft_and_hits_look_back_ten_seconds() -> None:
    series = Series()
    series.point(0.0, {0: slice_of()}, {})
    point = series.point(1.0, {0: slice_of([0.1, 0.3], prompt_tokens=100, cached_tokens=25)}, {})
    assert (point.ttft_p50_ms, point.ttft_p95_ms, point.hit_rate) == (300.0, 300.0, 0.25)
    for second in range(2, 12):
        point = series.point(float(second), {0: slice_of(prompt_tokens=100, cached_tokens=25)}, {})
    assert (point.ttft_p50_ms, point.hit_rate) == (None, None)


@pytest.mark.parametrize(("share", "value"), [(0.5, 3), (0.95, 5), (0.0, 1)])
def test_quantiles(share: float, value: float) -> None:
    assert quantile([1, 2, 3, 4, 5], share) == value
    assert quantile([], share) is None
