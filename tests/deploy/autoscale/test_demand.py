"""Demand in replicas, from what replicas report."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.autoscale.demand import Demand, DemandMeter, Report
from deploy.autoscale.formulas import Targets
from tests.deploy.autoscale.reports import load

TARGETS = Targets(prefill_share=0.5, token_usage=0.8, running_share=0.9, clear_s=10.0)


def measured(*moments: dict[str, Any], target_s: float | None = None) -> tuple[DemandMeter, Demand]:
    """After reports of one replica, 10 s apart."""
    meter = DemandMeter(TARGETS, ttft_target_s=target_s)
    demand = Demand(replicas=0.0)
    for number, moment in enumerate(moments):
        at_s = 10.0 * number
        demand = meter.measure(at_s, ["a"], {"a": Report(at_s, load("a", **moment))})
    return meter, demand


def test_an_idle_replica_is_not_needed() -> None:
    assert measured({}, {})[1] == Demand(replicas=0.0)


def test_prefill_counts_by_its_share_of_time() -> None:
    _, demand = measured({}, {"prefill_s_total": 4.0, "prompt_tokens_total": 4000})
    assert demand.replicas == pytest.approx(0.4 / 0.5)


def test_a_growing_queue_counts_at_the_speed_that_was_seen() -> None:
    busy = {"prefill_s_total": 10.0, "prompt_tokens_total": 10_000, "waiting_tokens": 5000, "waiting_requests": 5}
    _, demand = measured({}, busy)  # 1,000 tokens/s; 500 tokens/s more came; 5,000 wait
    assert demand.replicas == pytest.approx((1.0 + 0.5) / 0.5 + 5000 / (1000 * 10.0))


def test_cached_prompts_are_no_work() -> None:
    half = {"prompt_tokens_total": 10_000, "cached_tokens_total": 5000, "prefill_s_total": 5.0, "waiting_tokens": 4000}
    _, demand = measured({"waiting_tokens": 4000}, half)
    assert demand.replicas == pytest.approx(0.5 / 0.5 + 2000 / (1000 * 10.0))


def test_the_scarcest_resource_counts() -> None:
    assert measured({}, {"token_usage": 0.8})[1].replicas == pytest.approx(1.0)
    assert measured({}, {"running_requests": 45, "token_usage": 0.1})[1].replicas == pytest.approx(0.5)


def test_the_speed_is_unknown_before_the_first_prefill() -> None:
    _, demand = measured({}, {"waiting_tokens": 5000, "waiting_requests": 5})
    assert demand.replicas == pytest.approx(0.05 / 0.9)


def test_old_and_foreign_reports_are_missing() -> None:
    meter = DemandMeter(TARGETS, stale_s=10.0)
    reports = {"a": Report(0.0, load("a")), "b": Report(0.0, load("another life"))}
    assert meter.measure(0.0, ["a", "b", "c"], reports).missing == 2
    assert meter.measure(10.0, ["a"], reports).missing == 0
    assert meter.measure(10.5, ["a"], reports).missing == 1


def test_the_same_report_twice_changes_nothing() -> None:
    meter, demand = measured({}, {"prefill_s_total": 4.0, "prompt_tokens_total": 4000})
    again = {"a": Report(10.0, load("a", prefill_s_total=4.0, prompt_tokens_total=4000))}
    assert meter.measure(11.0, ["a"], again) == demand


def test_answers_within_the_target_are_counted_between_reports() -> None:
    before = {"ttft_counts": [10, 10, 10, 10]}
    after = {"ttft_counts": [12, 14, 18, 20]}  # 2 within 1 s, 2 within 2, 4 within 4, 2 later
    assert measured(before, after, target_s=2.0)[1].ttft_share == pytest.approx(0.4)
    assert measured(before, after, target_s=3.0)[1].ttft_share == pytest.approx(0.6)
    assert measured(before, after, target_s=9.0)[1].ttft_share == pytest.approx(0.8)
    assert measured(before, before, target_s=2.0)[1].ttft_share is None


def test_a_cache_is_worth_what_is_asked_of_it() -> None:
    meter = DemandMeter(TARGETS)
    for at_s, grown in ((0.0, 0), (10.0, 1)):
        reports = {}
        for name, held, hits in (("full", 50_000, 0), ("good", 20_000, 800 * grown), ("small", 500, 1000 * grown)):
            told = load(name, evictable_tokens=held, prompt_tokens_total=1000 * grown, cached_tokens_total=hits)
            reports[name] = Report(at_s, told)
        meter.measure(at_s, list(reports), reports)
    assert meter.cache_values() == pytest.approx({"full": 0.0, "good": 16_000.0, "small": 500.0})
