"""The formula: what makes a step longer, and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.sim.profile import load_profile
from worker.engine.sim.step_time import TOKEN_KNOTS, StepShape, decode_times_s, step_time_s

COSTS = load_profile("h200-llama3-8b").costs


def shape(**changes: Any) -> StepShape:
    """Eight decodes of 1,000 tokens, in a graph."""
    decodes = StepShape(
        graph=True,
        num_decode=8,
        decode_rows=8,
        context_tokens=8000,
        prefix_pairs=0,
        num_chunks=0,
        chunk_tokens=0,
        chunk_pairs=0,
        chunk_context_tokens=0,
    )
    return msgspec.structs.replace(decodes, **changes)


def test_by_hand() -> None:
    costs = msgspec.structs.replace(
        COSTS,
        every_step_s=1.0,
        eager_s=0.5,
        eager_floor_s=2.0,
        token_slopes_s=[0.01, 0.02, 0.0, 0.0, 0.0, 0.0],
        sequence_s=0.1,
        context_token_s=1e-3,
        prefix_s=3.0,
        prefix_pair_s=1e-6,
        chunk_s=0.25,
        chunk_pair_s=1e-5,
        chunk_context_token_s=1e-4,
        single_s=0.7,
        single_context_token_s=1e-3,
    )
    assert TOKEN_KNOTS[:2] == (0, 64)
    assert step_time_s(shape(), costs) == pytest.approx(1 + 8 * 0.01 + 0.8 + 8)
    mixed = shape(graph=False, num_chunks=1, chunk_tokens=92, chunk_pairs=1000, chunk_context_tokens=50)
    products = 100 * 0.01 + 36 * 0.02
    assert step_time_s(mixed, costs) == pytest.approx(1 + 0.5 + products + 0.9 + 8 + 0.25 + 0.01 + 0.005)
    assert step_time_s(shape(prefix_pairs=10**6), costs) == pytest.approx(step_time_s(shape(), costs) + 4)
    single = shape(num_decode=1, decode_rows=1, context_tokens=100)
    assert step_time_s(single, costs) == pytest.approx(0.8)
    assert step_time_s(msgspec.structs.replace(single, graph=False), costs) == 2.0


@given(
    st.sampled_from(["decode_rows", "context_tokens", "prefix_pairs", "chunk_tokens", "chunk_pairs"]),
    st.integers(1, 10_000),
)
def test_more_work_never_takes_less_time(quantity: str, more: int) -> None:
    base = shape(num_chunks=1, graph=False, chunk_tokens=10, chunk_pairs=55)
    grown = msgspec.structs.replace(base, **{quantity: getattr(base, quantity) + more})
    assert step_time_s(grown, COSTS) >= step_time_s(base, COSTS) >= COSTS.eager_floor_s


@given(st.booleans(), st.sampled_from([1, 2, 8]), st.integers(0, 100_000), st.integers(1, 50))
def test_decodes_that_go_on_take_the_time_of_their_steps_one_by_one(
    graph: bool, rows: int, context_tokens: int, steps: int
) -> None:
    now = shape(graph=graph, num_decode=rows, decode_rows=rows, context_tokens=context_tokens)
    later = [msgspec.structs.replace(now, context_tokens=context_tokens + step * rows) for step in range(1, steps + 1)]
    assert decode_times_s(now, COSTS, steps) == pytest.approx([step_time_s(one, COSTS) for one in later])
