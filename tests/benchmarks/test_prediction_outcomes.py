"""The table of predicted against actual cached tokens."""

from __future__ import annotations

import pytest

from benchmarks.prediction_outcomes import HEADER, Outcome, Summary, table

FIRST = Outcome(prompt=100, predicted=0, actual=0, worker="a", start=1, sent_s=0.0, head_s=2.0)
TOGETHER = Outcome(prompt=100, predicted=80, actual=40, worker="a", start=1, sent_s=1.0, head_s=3.0)
ELSEWHERE = Outcome(prompt=100, predicted=80, actual=60, worker="b", start=1, sent_s=1.0, head_s=3.0)
LATER = Outcome(prompt=200, predicted=90, actual=100, turn=2, worker="a", start=1, sent_s=5.0, head_s=6.0)
ALL = [FIRST, TOGETHER, ELSEWHERE, LATER]


def test_errors_are_shares_of_prompts() -> None:
    found = Summary.of(ALL, block_tokens=16)
    assert (found.answers, found.wrong, found.wrong_together) == (4, 2, 1)
    assert found.within_block == 0.5
    assert found.mean_error == pytest.approx((0.4 + 0.2 + 0.05) / 4)
    assert found.signed_error == pytest.approx((0.4 + 0.2 - 0.05) / 4)
    assert found.hit_rate == 200 / 500


def test_a_part_is_compared_with_all() -> None:
    assert Summary.of([TOGETHER], 16).wrong_together == 0
    assert Summary.of([TOGETHER], 16, ALL).wrong_together == 1


def test_the_table_has_a_line_for_each_turn() -> None:
    lines = list(table("exact", ALL, 16))
    assert [line.split()[1] for line in lines] == ["all", "1", "2"]
    assert all(len(line) == len(HEADER) for line in lines)
