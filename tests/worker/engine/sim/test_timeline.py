"""The timeline: things happen in the order of time, and of being planned, whatever plans more meanwhile."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.sim.timeline import Timeline

moments = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from([0.0, 0.5, 1.0])), max_size=20)


@given(moments, st.sampled_from([0.5, 1.0, 3.0]), st.booleans())
def test_things_happen_in_order_up_to_the_end_that_was_asked_for(
    plans: list[tuple[float, float]], until_s: float, included: bool
) -> None:
    timeline = Timeline()
    done: list[tuple[float, int]] = []
    planned = 0

    def plan(when_s: float, then_s: float | None) -> None:
        nonlocal planned
        planned += 1
        timeline.at(when_s, partial(happen, planned, when_s, then_s))

    def happen(number: int, when_s: float, then_s: float | None) -> None:
        assert timeline.clock.now_s() == when_s
        done.append((when_s, number))
        if then_s is not None:
            plan(when_s + then_s, None)

    for when_s, then_s in plans:
        plan(when_s, then_s)
    timeline.run(until_s, included=included)
    assert timeline.clock.now_s() == until_s
    assert all(when_s < until_s or (included and when_s == until_s) for when_s, _ in done)
    timeline.run()
    assert len(done) == 2 * len(plans) and done == sorted(done)
