"""new_token_ratio, with the numbers of the tuning guide."""

from __future__ import annotations

import pytest

from tests.helpers.builders import make_request
from worker.scheduler.rows import RequestTable
from worker.scheduler.token_ratio import NewTokenRatio

TABLE = RequestTable(4, 10_000, 1)


@pytest.mark.parametrize(
    ("conservativeness", "initial", "floor"),
    [(1.0, 0.7, 0.098), (0.3, 0.21, 0.0294), (1.3, 0.91, 0.1274), (5.0, 1.0, 0.14), (0.0, 0.0, 0.0)],
)
def test_start_and_floor(conservativeness: float, initial: float, floor: float) -> None:
    ratio = NewTokenRatio(conservativeness, TABLE)
    assert ratio.value == pytest.approx(initial)
    assert ratio.floor == pytest.approx(floor)


def test_reaches_the_floor_in_600_steps_and_stays() -> None:
    ratio = NewTokenRatio(1.0, TABLE)
    ratio.decay()
    assert ratio.value == pytest.approx(0.7 - (0.7 - 0.098) / 600)
    for _ in range(598):
        ratio.decay()
    assert ratio.value > 0.0985
    for _ in range(3):
        ratio.decay()
    assert ratio.value == pytest.approx(0.098)


def test_retraction_sets_it_to_what_those_who_stay_need() -> None:
    ratio = NewTokenRatio(1.0, TABLE)
    ratio.raise_after_retraction(generated_tokens=100, max_new_tokens=300, num_requests=3)
    assert ratio.value == pytest.approx((100 + 20 * 3) / 301)
    ratio.raise_after_retraction(generated_tokens=290, max_new_tokens=300, num_requests=3)
    assert ratio.value == 1.0


def test_idle_goes_back_to_the_start() -> None:
    ratio = NewTokenRatio(1.0, TABLE)
    ratio.decay()
    ratio.reset()
    assert ratio.value == 0.7


def test_a_candidate_is_charged_its_whole_output_and_4096_at_most() -> None:
    ratio = NewTokenRatio(1.0, TABLE)
    assert ratio.charge(make_request([1], max_new_tokens=99), 50) == 99
    assert ratio.charge(make_request([1], max_new_tokens=30_000), 50) == 4096


def test_running_requests_are_charged_a_share_of_what_they_may_still_produce() -> None:
    table = RequestTable(4, 10_000, 1)
    ratio = NewTokenRatio(1.0, table)
    assert ratio.begin() == 0
    row = table.acquire(make_request([1, 2], max_new_tokens=100))
    table.decoding[row], table.num_launched[row] = True, 60
    assert ratio.begin() == pytest.approx(0.7 * 40)
    table.acquire(make_request([1, 2], max_new_tokens=100))  # its prompt is not computed yet
    assert ratio.begin() == pytest.approx(0.7 * 40)
