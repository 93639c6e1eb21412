"""new_token_ratio, with the numbers of the tuning guide."""

from __future__ import annotations

import pytest

from worker.scheduler.token_ratio import NewTokenRatio


@pytest.mark.parametrize(
    ("conservativeness", "initial", "floor"),
    [(1.0, 0.7, 0.098), (0.3, 0.21, 0.0294), (1.3, 0.91, 0.1274), (5.0, 1.0, 0.14), (0.0, 0.0, 0.0)],
)
def test_start_and_floor(conservativeness: float, initial: float, floor: float) -> None:
    ratio = NewTokenRatio(conservativeness)
    assert ratio.value == pytest.approx(initial)
    assert ratio.floor == pytest.approx(floor)


def test_reaches_the_floor_in_600_steps_and_stays() -> None:
    ratio = NewTokenRatio(1.0)
    ratio.decay()
    assert ratio.value == pytest.approx(0.7 - (0.7 - 0.098) / 600)
    for _ in range(598):
        ratio.decay()
    assert ratio.value > 0.0985
    for _ in range(3):
        ratio.decay()
    assert ratio.value == pytest.approx(0.098)


def test_retraction_sets_it_to_what_those_who_stay_need() -> None:
    ratio = NewTokenRatio(1.0)
    ratio.raise_after_retraction(generated_tokens=100, max_new_tokens=300, num_requests=3)
    assert ratio.value == pytest.approx((100 + 20 * 3) / 301)
    ratio.raise_after_retraction(generated_tokens=290, max_new_tokens=300, num_requests=3)
    assert ratio.value == 1.0


def test_idle_goes_back_to_the_start() -> None:
    ratio = NewTokenRatio(1.0)
    ratio.decay()
    ratio.reset()
    assert ratio.value == 0.7
