"""The definitions of the figures, by hand-made outcomes and by properties."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serve.load import Run
from benchmarks.serve.outcomes import Outcome
from benchmarks.serve.own_cost import OwnCost
from benchmarks.serve.results import QUANTILES, Goal, details, notes, summary
from benchmarks.serve.table import levels, table

IDLE = OwnCost(cpu_s=0.1, wall_s=1.0, lag_p99_s=0.001)


def outcome(begin_s: float, ttft_s: float, gaps_s: list[float], cached: int = 0, delay_s: float = 0.0) -> Outcome:
    return Outcome(
        success=True,
        begin_s=begin_s,
        delay_s=delay_s,
        ttft_s=ttft_s,
        latency_s=ttft_s + sum(gaps_s),
        itls_s=gaps_s,
        input_tokens=100,
        output_tokens=len(gaps_s) + 1,
        cached_tokens=cached,
        text="some words",
    )


def run_of(*outcomes: Outcome, duration_s: float = 2.0, cost: OwnCost = IDLE, planned: int | None = None) -> Run:
    return Run(list(outcomes), len(outcomes) if planned is None else planned, 0.0, duration_s, cost)


def test_figures_follow_their_definitions() -> None:
    run = run_of(
        outcome(0.0, 0.5, [0.1, 0.3], cached=50),
        outcome(0.2, 1.0, [0.2]),
        Outcome(error="HTTP 503", latency_s=9),
    )
    figures = summary(run, Goal({"ttft": 600.0}), lambda text: len(text.split()))
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (200, 5)
    assert figures["total_output_tokens_retokenized"] == 4
    assert figures["cache_hit_rate"] == 0.25
    assert figures["output_throughput"] == 2.5
    assert figures["max_output_tokens_per_s"] == 5
    assert figures["mean_ttft_ms"] == pytest.approx(750)
    assert figures["mean_tpot_ms"] == pytest.approx((200 + 200) / 2)
    assert figures["median_itl_ms"] == pytest.approx(200)
    assert figures["mean_e2e_latency_ms"] == pytest.approx((900 + 1200) / 2)
    assert figures["concurrency"] == pytest.approx((0.9 + 1.2) / 2.0)
    assert figures["max_concurrent_requests"] == 2
    assert figures["request_goodput"] == pytest.approx(1 / 2.0)
    assert figures["goodput_share"] == pytest.approx(1 / 3)
    assert figures["client_cpu_us_per_request"] == pytest.approx(1e5 / 3)
    assert details(run)["errors"] == ["", "", "HTTP 503"]


OUTCOMES = st.lists(
    st.builds(
        outcome,
        st.floats(0, 100),
        st.floats(0.001, 10),
        st.lists(st.floats(0, 1), max_size=20),
        cached=st.integers(0, 100),
    ),
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(OUTCOMES)
def test_figures_agree_with_each_other(outcomes: list[Outcome]) -> None:
    duration_s = max((one.begin_s + one.latency_s for one in outcomes), default=1.0)
    figures = summary(run_of(*outcomes, duration_s=duration_s), Goal({"e2e_latency": 1e9}))
    tokens, timeline = figures["total_output_tokens"], figures["timeline"]
    assert figures["total_throughput"] == pytest.approx(figures["input_throughput"] + figures["output_throughput"])
    assert figures["max_output_tokens_per_s"] <= tokens + 1e-9
    assert sum(timeline["output_throughput"]) * timeline["step_s"] == pytest.approx(tokens, abs=0.1 * duration_s + 1e-6)
    assert max(timeline["in_flight"]) <= figures["max_concurrent_requests"] <= len(outcomes)
    assert figures["goodput_share"] == (1.0 if outcomes else 0.0)
    for name, values in figures["quantiles"].items():
        assert len(values) in (0, len(QUANTILES)) and values == sorted(values)
        assert not values or values[-1] == pytest.approx(figures[f"max_{name}_ms"], abs=1e-3)


def test_notes_tell_what_makes_figures_wrong() -> None:
    good = outcome(0.0, 0.5, [0.1])
    assert notes(run_of(good), paced=True, max_concurrency=4) == []
    (busy,) = notes(run_of(good, cost=OwnCost(0.95, 1.0, 0.001)), paced=False, max_concurrency=None)
    assert busy.startswith("The client was a bottleneck: it used 95% of a core")
    assert (
        "waiting for a core: it used 10% of one, but woke up 60.0 ms late"
        in notes(run_of(good, cost=OwnCost(0.1, 1.0, 0.06)), paced=False, max_concurrency=None)[0]
    )
    held = run_of(good, outcome(0.0, 0.5, [0.1], delay_s=3.0))
    (waited,) = notes(held, paced=True, max_concurrency=4)
    assert waited.startswith("50% of the requests waited for room within --max-concurrency 4")
    assert notes(held, paced=False, max_concurrency=4) == []
    assert "2 turns" in notes(run_of(good, planned=3), paced=False, max_concurrency=None)[0]


def test_the_table_shows_every_distribution_also_of_nothing() -> None:
    figures = summary(run_of(duration_s=1.0), Goal({"ttft": 100.0})) | {"notes": ["Mind this."]}
    text = table(figures)
    for title in ("Successful requests", "Time to First Token", "Inter-Token Latency", "P99 TPOT (ms)", "Max ITL"):
        assert title in text
    assert "(latency - TTFT) / (output tokens - 1)" in text and "note: Mind this." in text
    head, *rows = levels([figures | {"request_rate": 2.0}, figures | {"request_rate": 4.0}]).splitlines()
    assert len(rows) == 2 and "TTFT" in head and "conc." not in head
