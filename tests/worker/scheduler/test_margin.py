"""The margin settles where retractions come as far apart as wanted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.scheduler.margin import MOST, PAUSE_S, RETRACTION_INTERVAL_S, START, STEP, Margin


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans())))
def test_stays_in_its_bounds_and_moves_with_what_happens(events: list[tuple[float, bool]]) -> None:
    margin, now_s = Margin(0.0), 0.0
    for gap_s, retracts in events:
        now_s += gap_s
        before = margin.value
        if retracts:
            margin.on_retraction(now_s)
            assert before <= margin.value <= before + STEP
        else:
            margin.under_load(now_s)
            assert before - (1 + MOST - START) * STEP / RETRACTION_INTERVAL_S - 1e-9 <= margin.value <= before
        assert 0 <= margin.value <= MOST


@settings(deadline=None, max_examples=25)
@given(st.floats(0.0, MOST - STEP), st.integers(1, 10))
def test_settles_where_retractions_are_rare(enough: float, steps_a_second: int) -> None:
    """In a world that retracts, again and again, as long as the margin is not `enough`."""
    margin, now_s, times = Margin(0.0), 0.0, []
    for _ in range(1800 * steps_a_second):
        now_s += 1 / steps_a_second
        margin.under_load(now_s)
        if margin.value < enough:
            before = margin.value
            margin.on_retraction(now_s)
            if margin.value > before:
                times.append(now_s)
    climb = max(enough - START, 0) / STEP + 1  # retractions until the margin was enough for the first time
    assert len(times) <= climb + 1800 / 60
    late = [time for time in times if time > climb * PAUSE_S + RETRACTION_INTERVAL_S]
    assert all(later - early > 60 for early, later in zip(late, late[1:], strict=False))


def test_retractions_with_one_cause_count_once_and_pauses_teach_nothing() -> None:
    margin = Margin(0.0)
    for now_s in (1.0, 1.1, 3.0, 1.0 + PAUSE_S):
        margin.on_retraction(now_s)
    assert margin.value == START + 2 * STEP
    margin.under_load(100.0)
    at_100_s = margin.value
    margin.under_load(10_000.0)
    assert at_100_s - margin.value <= (1 + MOST - START) * STEP / RETRACTION_INTERVAL_S
