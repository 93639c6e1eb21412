"""The times of a traced request, by the scheduler's clock."""

from __future__ import annotations

import msgspec

from tests.helpers.builders import SchedulerBench
from worker.ipc.messages import GenerateRequest, RequestTimes, StepOutput


def times_of(bench: SchedulerBench, rid: str) -> list[RequestTimes | None]:
    outputs = [message for message in bench.messages if isinstance(message, StepOutput)]
    return [delta.times for output in outputs for delta in output.deltas if delta.rid == rid]


def test_queue_prefill_and_decode() -> None:
    bench = SchedulerBench(max_running_requests=1)
    bench.clock.advance(5)
    bench.submit([1, 2], "before", max_new_tokens=2, ignore_eos=True)
    params = bench.expect([1, 2, 3], "traced", max_new_tokens=3, ignore_eos=True)
    bench.scheduler.handle(GenerateRequest(rid="traced", input_ids=[1, 2, 3], sampling=params, traced=True))
    while bench.scheduler.step():
        bench.clock.advance(1)
    assert times_of(bench, "before") == [None, None]
    first, last = times_of(bench, "traced")
    assert first is not None and last is not None
    assert msgspec.structs.replace(last, told_s=first.told_s) == first
    assert first.arrived_s == 5 < first.admitted_s <= first.first_token_s == first.told_s < last.told_s


def test_one_that_never_ran() -> None:
    bench = SchedulerBench(max_running_requests=1)
    bench.clock.advance(5)
    bench.submit([1, 2], "before", max_new_tokens=9, ignore_eos=True)
    bench.step()
    params = bench.expect([1, 2, 3], "traced", max_new_tokens=3)
    bench.scheduler.handle(GenerateRequest(rid="traced", input_ids=[1, 2, 3], sampling=params, traced=True))
    bench.clock.advance(1)
    bench.abort("traced")
    bench.step()
    assert times_of(bench, "traced") == [RequestTimes(5, 0, 0, 6)]
