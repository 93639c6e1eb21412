"""W3C Trace Context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.tracing.context import TraceContext, decide, parse_traceparent, root

contexts = st.builds(TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())


@given(contexts)
def test_what_is_written_is_read(context: TraceContext) -> None:
    assert parse_traceparent(context.header()) == context


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", True),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-will-come", True),
    ],
)
def test_examples_of_the_standard(header: str, sampled: bool) -> None:
    context = parse_traceparent(header)
    assert context is not None and context.sampled is sampled
    assert f"{context.trace_id:032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
    ],
)
def test_what_is_no_traceparent(header: str) -> None:
    assert parse_traceparent(header) is None


@given(contexts)
def test_children_stay_in_the_trace_and_keep_its_decision(context: TraceContext) -> None:
    child = decide(context, 0.0 if context.sampled else 1.0)
    assert (child.trace_id, child.sampled) == (context.trace_id, context.sampled)
    assert child.span_id != context.span_id


def test_without_a_client_s_decision_the_ratio_decides() -> None:
    assert decide(None, 1.0).sampled and not decide(None, 0.0).sampled
    share = sum(decide(None, 0.25).sampled for _ in range(4000)) / 4000
    assert 0.2 < share < 0.3
    assert root(sampled=True) != root(sampled=True)
