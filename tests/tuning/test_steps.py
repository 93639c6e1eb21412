"""Tuning guide: prefill chunks against gaps between tokens, and CUDA graphs against step time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.sim_bench import SimBench, random_prompt

LONG_PROMPT = random_prompt(99, 30_000)


def longest_gap_s(chunk_tokens: int) -> float:
    """Between two tokens of running requests while a long prompt is computed."""
    bench = SimBench(chunked_prefill_size=chunk_tokens)
    running = [bench.submit(random_prompt(seed, 100), 200, ignore_eos=True) for seed in range(16)]
    for _ in range(20):
        bench.step()
    long = bench.submit(LONG_PROMPT, 4, ignore_eos=True)
    bench.finish()
    assert long.times_s[-1] < running[0].times_s[-1]
    return max(max(served.gaps_s) for served in running)


def first_token_s(chunk_tokens: int) -> float:
    """Of the long prompt alone."""
    bench = SimBench(chunked_prefill_size=chunk_tokens)
    long = bench.submit(LONG_PROMPT, 4, ignore_eos=True)
    bench.finish()
    return long.first_token_s


def test_smaller_chunks_shorten_gaps_and_slow_long_prompts() -> None:
    gaps = [longest_gap_s(chunk) for chunk in (8192, 4096, 2048)]
    assert gaps[0] > 1.5 * gaps[1] > 1.5 * 1.5 * gaps[2]
    times = [first_token_s(chunk) for chunk in (8192, 4096, 2048)]
    assert times[0] < times[1] < times[2] < 1.3 * times[0]


def decode_time_s(**settings: Any) -> float:
    """Of 32 requests of 100 tokens."""
    bench = SimBench(decode_log_interval=20, **settings)
    for seed in range(32):
        bench.submit(random_prompt(seed, 100), 100, ignore_eos=True)
    bench.finish()
    return bench.clock.now_s()


def test_batches_above_the_largest_cuda_graph_are_slower(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with_graphs = decode_time_s(cuda_graph_max_bs=64)
    told = [record.getMessage() for record in caplog.records if "Decode batch" in record.getMessage()]
    assert told and all("cuda graph: True" in line for line in told)
    caplog.clear()
    without = decode_time_s(cuda_graph_max_bs=8)
    told = [record.getMessage() for record in caplog.records if "Decode batch" in record.getMessage()]
    assert told and all("cuda graph: False" in line for line in told)
    assert without > with_graphs
    assert decode_time_s(disable_cuda_graph=True) == pytest.approx(without)
