"""Tuning guide: token usage with a queue, and retractions, against --schedule-conservativeness."""

from __future__ import annotations

import pytest

from tests.helpers.sim_bench import SimBench, h200, random_prompt

POOL_TOKENS = 30_000


def early_stopping(conservativeness: float) -> SimBench:
    """Requests that ask for up to 2,048 tokens and end by themselves after 40 to 160."""
    bench = SimBench(
        h200(answer_tokens=(40, 160)), max_total_tokens=POOL_TOKENS, schedule_conservativeness=conservativeness
    )
    for seed in range(250):
        bench.submit(random_prompt(seed, 256), 2048)
    bench.finish()
    assert all(40 <= len(served.token_ids) <= 160 for served in bench.served.values())
    return bench


def to_the_limit(conservativeness: float) -> SimBench:
    """Requests that use all of the 500 to 700 tokens they ask for."""
    bench = SimBench(
        max_total_tokens=POOL_TOKENS, chunked_prefill_size=1024, schedule_conservativeness=conservativeness
    )
    for seed in range(100):
        bench.submit(random_prompt(seed, 64), 500 + seed * 37 % 200, ignore_eos=True)
    bench.finish()
    assert all(served.finish is not None and served.finish.kind == "length" for served in bench.served.values())
    return bench


def test_early_stops_leave_the_pool_empty_and_a_lower_value_fills_it() -> None:
    usual, low = early_stopping(1.0), early_stopping(0.3)
    assert usual.queued()
    assert usual.mean_usage_with_queue() < 0.9
    assert low.mean_usage_with_queue() > 1.2 * usual.mean_usage_with_queue()
    assert low.throughput > 1.05 * usual.throughput
    assert usual.load.retracted_requests_total == low.load.retracted_requests_total == 0


def test_too_low_a_value_retracts_and_a_higher_one_less(caplog: pytest.LogCaptureFixture) -> None:
    retracted = {value: to_the_limit(value).load.retracted_requests_total for value in (0.3, 1.0, 1.3)}
    assert retracted[0.3] > 1.5 * retracted[1.0]
    assert retracted[1.3] < retracted[1.0]
    warnings = [record.getMessage() for record in caplog.records if "Retract requests." in record.getMessage()]
    assert warnings
    assert all("KV cache pool is full. Retract requests. #retracted_reqs: " in line for line in warnings)
