"""Loads: any part of them at any time, prompts that share what they should."""

from __future__ import annotations

import math
from itertools import takewhile

import numpy as np
import pytest

from benchmarks.traces import Trace, TraceRequest
from deploy.plan.lengths import parse_lengths
from deploy.plan.workload import Ask, DescribedWorkload, TraceWorkload

RECORDED = Trace(
    "t",
    0.0,
    (
        TraceRequest(0.0, 1000, 5, (0, 1)),
        TraceRequest(4.0, 1024, 6, (0, 2)),
        TraceRequest(10.0, 300, 7, (3,)),
    ),
)


def tokens(ask: Ask) -> list[int]:
    return np.frombuffer(ask.prompt_key(), np.int32).tolist()


def shared(one: Ask, other: Ask) -> int:
    """Tokens that two prompts begin with."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(tokens(one), tokens(other), strict=False))))


def test_equal_blocks_are_equal_tokens() -> None:
    one, other, third = TraceWorkload(RECORDED).asks(0.0, math.inf)
    assert [len(tokens(ask)) for ask in (one, other, third)] == [1000, 1024, 300]
    assert (shared(one, other), shared(one, third)) == (512, 0)
    assert min(tokens(one)) > 0  # answers are made of 0


def test_a_trace_is_played_faster_and_again_with_blocks_of_its_own() -> None:
    load = TraceWorkload(RECORDED, speed=2.0, rounds=3)
    asks = list(load.asks(0.0, math.inf))
    assert load.num_requests == len(asks) == 9
    assert [ask.arrival_s for ask in asks[:4]] == [0.0, 2.0, 5.0, 7.5]  # a mean gap before the next round
    assert load.duration_s == 22.5
    assert shared(asks[0], asks[3]) == 0 and shared(asks[3], asks[4]) == 512


def test_any_part_of_a_trace_is_the_same_as_in_the_whole() -> None:
    load = TraceWorkload(RECORDED, rounds=3)
    whole = list(load.asks(0.0, load.duration_s))
    for begin_s in (0.0, 4.0, 4.5, 16.0, 44.0):
        part = list(load.asks(begin_s, begin_s + 15.0))
        assert part == [ask for ask in whole if begin_s <= ask.arrival_s < begin_s + 15.0]


def test_of_requests_at_the_same_time_the_shorter_one_is_first() -> None:
    tied = Trace("t", 0.0, (TraceRequest(0.0, 300, 5), TraceRequest(0.0, 100, 5), TraceRequest(3.0, 50, 5)))
    assert [ask.prompt_tokens for ask in TraceWorkload(tied).asks(0.0, math.inf)] == [100, 300, 50]


def test_a_trace_without_blocks_shares_nothing() -> None:
    plain = Trace("t", 0.0, (TraceRequest(0.0, 100, 5), TraceRequest(1.0, 100, 5)))
    one, other = TraceWorkload(plain).asks(0.0, math.inf)
    assert len(tokens(one)) == 100 and shared(one, other) == 0


def described(share: float = 0.0) -> DescribedWorkload:
    return DescribedWorkload(
        rate_per_s=20.0,
        duration_s=300.0,
        prompt=parse_lengths("160", flag=""),
        output=parse_lengths("10-20", flag=""),
        shared_share=share,
        prefixes=2,
        seed=3,
    )


def test_a_described_load_has_its_rate_and_lengths_and_is_the_same_again() -> None:
    asks = list(described().asks(0.0, math.inf))
    assert len(asks) == pytest.approx(6000, rel=0.05) and described().num_requests == 6000
    assert all(10 <= ask.output_tokens <= 20 and ask.prompt_tokens == 160 for ask in asks)
    part = list(described().asks(50.0, 130.0))
    assert part == [ask for ask in asks if 50.0 <= ask.arrival_s < 130.0]
    assert sorted(ask.arrival_s for ask in asks) == [ask.arrival_s for ask in asks]
    assert len({ask.own_id for ask in asks}) == len(asks)


def test_described_prompts_share_as_much_as_was_said() -> None:
    asks = list(described(share=0.5).asks(0.0, 10.0))
    common = {shared(asks[0], other) for other in asks[1:]}
    assert common == {0, 80}
