"""The scheduler as a whole over a fake runner: every token a request gets is the one it would get alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.builders import SchedulerBench

VARIANTS = [
    pytest.param(overlaps, mixed, id=f"{'overlap' if overlaps else 'sync'}-{'mixed' if mixed else 'prefill_first'}")
    for overlaps in (False, True)
    for mixed in (True, False)
]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    overlaps, mixed = request.param
    return {"overlaps": overlaps}, {"enable_mixed_chunk": mixed}


def test_one_request_gets_its_tokens(variant: tuple[dict[str, Any], dict[str, Any]]) -> None:
    runner, settings = variant
    bench = SchedulerBench(runner, **settings)
    rid = bench.submit([5, 6, 7], max_new_tokens=9, ignore_eos=True)
    bench.run_until_idle()
    assert bench.tokens(rid) == bench.expected(rid)
    assert len(bench.tokens(rid)) == 9
    assert bench.finish(rid).kind == "length"
