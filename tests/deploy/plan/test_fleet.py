"""The virtual fleet against arithmetic, and taking turns together against taking each by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.plan.fleet import Served, VirtualFleet
from deploy.plan.workload import Ask
from tests.helpers.planned_fleets import ask, small_spec
from worker.engine.sim.step_time import StepShape, step_time_s


def figures(served: list[Served]) -> list[tuple[float, float, int, str]]:
    return [(one.ttft_s, one.latency_s, one.cached_tokens, one.fault) for one in served]


def test_one_request_takes_its_prefill_and_its_decodes() -> None:
    spec = small_spec()
    fleet = VirtualFleet(spec, 1)
    (served,) = fleet.run([ask(5.0, 200, 3)])
    costs = spec.profile.costs
    nothing = dict.fromkeys(StepShape.__struct_fields__, 0) | {"graph": False}
    prefill = StepShape(**nothing | {"num_chunks": 1, "chunk_tokens": 200, "chunk_pairs": 200 * 201 // 2})
    assert served.ttft_s == pytest.approx(step_time_s(prefill, costs))
    decodes = [
        step_time_s(
            StepShape(**nothing | {"graph": True, "num_decode": 1, "decode_rows": 1, "context_tokens": 201 + n}), costs
        )
        for n in range(2)
    ]
    assert served.latency_s - served.ttft_s == pytest.approx(sum(decodes))


def test_a_shared_prompt_is_cached_and_goes_where_it_is() -> None:
    fleet = VirtualFleet(small_spec(), 4)
    first, second, third = fleet.run(
        [
            ask(0.0, 1600, 4, range(100), 1),
            ask(10.0, 1616, 4, range(100), 2),
            ask(20.0, 1600, 4, range(500, 600), 3),
        ]
    )
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 1600, 0)
    assert second.ttft_s < first.ttft_s


def test_a_prompt_beyond_the_context_is_refused_with_the_reason() -> None:
    fleet = VirtualFleet(small_spec(context_len=512), 1)
    refused, served = fleet.run([ask(0.0, 600, 4), ask(0.1, 100, 4)])
    assert "context length is 512" in refused.fault and not served.fault


def test_a_second_load_finds_what_the_first_one_left() -> None:
    fleet = VirtualFleet(small_spec(), 1)
    fleet.run([ask(0.0, 1600, 4, range(100))])
    (again,) = fleet.run([ask(100.0, 1600, 4, range(100))])
    assert again.cached_tokens == 1584  # the last token is always computed, and pages have 16


requests = st.builds(
    lambda gap, prompt, output, shared, start: (gap, prompt, output, range(start, start + min(shared, prompt // 16))),
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.integers(1, 400),
    st.sampled_from([1, 2, 3, 20, 90]),
    st.integers(0, 20),
    st.sampled_from([0, 1000]),
)
configs = st.fixed_dictionaries(
    {
        "max_total_tokens": st.sampled_from([640, 1200, 100_000]),
        "max_running_requests": st.sampled_from([2, 64]),
        "schedule_policy": st.sampled_from(["fcfs", "lpm"]),
        "enable_mixed_chunk": st.booleans(),
        "chunked_prefill_size": st.sampled_from([128, 8192]),
        "disable_cuda_graph": st.booleans(),
        "schedule_conservativeness": st.sampled_from([0.1, 1.0]),
    }
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(load=st.lists(requests, min_size=1, max_size=12), worker=configs, replicas=st.sampled_from([1, 2]))
def test_turns_taken_together_are_the_turns_taken_one_by_one(
    load: list[tuple[float, int, int, range]], worker: dict[str, Any], replicas: int
) -> None:
    asks: list[Ask] = []
    now_s = 0.0
    for index, (gap_s, prompt, output, blocks) in enumerate(load):
        now_s += gap_s
        asks.append(ask(now_s, prompt, output, blocks, index))
    spec = small_spec(context_len=512, **worker)
    fleets = [VirtualFleet(spec, replicas, together=together) for together in (True, False)]
    together, apart = (figures(fleet.run(asks)) for fleet in fleets)
    for one, other in zip(together, apart, strict=True):
        assert one[:2] == pytest.approx(other[:2], abs=1e-9)
        assert one[2:] == other[2:]
    counters = ("finished_requests_total", "generation_tokens_total", "retracted_requests_total", "cached_tokens_total")
    for one_replica, other_replica in zip(*(fleet.replicas.values() for fleet in fleets), strict=True):
        reports = one_replica.scheduler.load_report(0), other_replica.scheduler.load_report(0)
        assert [getattr(reports[0], name) for name in counters] == [getattr(reports[1], name) for name in counters]
        assert reports[0].steps_total == reports[1].steps_total
        assert reports[0].num_evictable_tokens == reports[1].num_evictable_tokens
        one_replica.scheduler.check_pool()
