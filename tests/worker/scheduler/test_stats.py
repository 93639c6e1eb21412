"""The log lines, letter for letter: tools and people parse them."""

from __future__ import annotations

import logging

import pytest

from tests.helpers.clock import FakeClock
from worker.scheduler.stats import SchedulerStats

LOGGER = "worker.scheduler.stats"


def test_decode_line_and_throughput(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    clock = FakeClock(100.0)
    stats = SchedulerStats(clock, decode_log_interval=2)
    for _ in range(2):
        clock.advance(2.0)
        stats.on_tokens(9188)
        stats.on_decode(running=233, used_tokens=370959, usage=0.8199, cuda_graph=True, queued=317)
    assert caplog.messages == [
        "Decode batch. #running-req: 233, #token: 370959, token usage: 0.82, cuda graph: True, "
        "gen throughput (token/s): 4594.00, #queue-req: 317"
    ]
    assert stats.gen_throughput == 4594.0
    assert stats.generation_tokens == 18376


def test_throughput_counts_from_the_last_line_and_is_zero_when_idle() -> None:
    clock = FakeClock()
    stats = SchedulerStats(clock, decode_log_interval=1)

    def decode(tokens: int, seconds: float) -> float:
        clock.advance(seconds)
        stats.on_tokens(tokens)
        stats.on_decode(running=1, used_tokens=1, usage=0.0, cuda_graph=False, queued=0)
        return stats.gen_throughput

    assert decode(10, 2.0) == 5.0
    assert decode(30, 1.0) == 30.0
    stats.on_idle()
    assert stats.gen_throughput == 0.0
    clock.advance(1000.0)
    stats.on_idle()
    assert decode(10, 2.0) == 5.0


def test_prefill_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    SchedulerStats(FakeClock(), 40).on_prefill(
        new_seqs=3, new_tokens=120, cached_tokens=64, usage=0.514, running=7, queued=2
    )
    assert caplog.messages == [
        "Prefill batch. #new-seq: 3, #new-token: 120, #cached-token: 64, token usage: 0.51, "
        "#running-req: 7, #queue-req: 2"
    ]


def test_retraction_line_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stats = SchedulerStats(FakeClock(), 40)
    stats.on_retraction(1, 0.9998, 1.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9998 -> 1.0000",
        )
    ]
    assert stats.retracted_requests == 1


def test_cache_hit_rate_without_prompts_is_zero() -> None:
    stats = SchedulerStats(FakeClock(), 40)
    assert stats.cache_hit_rate == 0.0
    stats.prompt_tokens, stats.cached_tokens = 200, 50
    assert stats.cache_hit_rate == 0.25
