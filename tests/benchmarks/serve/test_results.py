"""The definitions of the figures, by hand-made outcomes."""

from __future__ import annotations

import pytest

from benchmarks.serve.client import Outcome
from benchmarks.serve.results import Goal, summary, table


def outcome(begin_s: float, ttft_s: float, gaps_s: list[float], cached: int = 0) -> Outcome:
    return Outcome(
        success=True,
        begin_s=begin_s,
        ttft_s=ttft_s,
        latency_s=ttft_s + sum(gaps_s),
        itls_s=gaps_s,
        input_tokens=100,
        output_tokens=len(gaps_s) + 1,
        cached_tokens=cached,
    )


def test_figures_follow_their_definitions() -> None:
    outcomes = [
        outcome(0.0, 0.5, [0.1, 0.3], cached=50),
        outcome(0.2, 1.0, [0.2]),
        Outcome(error="HTTP 503", latency_s=9),
    ]
    figures = summary(outcomes, 2.0, Goal({"ttft": 600.0}))
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (200, 5)
    assert figures["cache_hit_rate"] == 0.25
    assert figures["output_throughput"] == 2.5
    assert figures["mean_ttft_ms"] == pytest.approx(750)
    assert figures["mean_tpot_ms"] == pytest.approx((200 + 200) / 2)
    assert figures["median_itl_ms"] == pytest.approx(200)
    assert figures["mean_e2e_latency_ms"] == pytest.approx((900 + 1200) / 2)
    assert figures["concurrency"] == pytest.approx((0.9 + 1.2) / 2.0)
    assert figures["max_concurrent_requests"] == 2
    assert figures["request_goodput"] == pytest.approx(1 / 2.0)


def test_the_table_shows_every_distribution_also_of_nothing() -> None:
    text = table(summary([], 1.0))
    for title in ("Successful requests", "Time to First Token", "Inter-Token Latency", "P99 TPOT (ms)"):
        assert title in text
