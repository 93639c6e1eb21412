"""Pausing the scheduler: nothing is computed, nothing is lost, and what goes on is as if nothing had been."""

from __future__ import annotations

import pytest

from tests.helpers.builders import SchedulerBench
from worker.ipc.messages import CallReply, ContinueGeneration, FlushCache, PauseGeneration

PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16]]


def bench_under_way(overlaps: bool) -> tuple[SchedulerBench, list[str]]:
    bench = SchedulerBench({"overlaps": overlaps}, chunked_prefill_size=4)
    rids = [bench.submit(prompt, max_new_tokens=12, ignore_eos=True) for prompt in PROMPTS]
    bench.step(4)
    return bench, rids


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("retract", [False, True])
def test_a_pause_changes_no_answer(overlaps: bool, retract: bool) -> None:
    bench, rids = bench_under_way(overlaps)
    bench.scheduler.handle(PauseGeneration(call_id=1, retract=retract))
    late = bench.submit([17, 18], max_new_tokens=5, ignore_eos=True)
    num_batches = len(bench.runner.batches)
    for _ in range(3):
        assert not bench.scheduler.step()
        bench.scheduler.on_idle()
        bench.scheduler.check_pool()
    assert len(bench.runner.batches) == num_batches
    assert bench.load().num_running_reqs == (0 if retract else len(bench.scheduler._table.used_rows()))
    assert (bench.load().num_used_tokens == 0) == retract
    bench.scheduler.handle(FlushCache(call_id=2))
    bench.scheduler.handle(ContinueGeneration(call_id=3))
    bench.run_until_idle()
    assert [bench.tokens(rid) for rid in [*rids, late]] == [bench.expected(rid) for rid in [*rids, late]]
    replies = {m.call_id: m.ok for m in bench.messages if isinstance(m, CallReply)}
    assert replies == {1: True, 2: False, 3: True}


def test_retracted_requests_go_on_in_their_order() -> None:
    bench, rids = bench_under_way(False)
    bench.scheduler.handle(PauseGeneration(call_id=1, retract=True))
    waiting = [request.rid for lane in bench.scheduler._waiting.lanes() for request in lane]
    assert waiting == rids


def test_requests_can_be_aborted_in_a_pause() -> None:
    bench, rids = bench_under_way(True)
    bench.scheduler.handle(PauseGeneration(call_id=1))
    for rid in rids:
        bench.abort(rid)
    assert not bench.scheduler.step()
    bench.scheduler.on_idle()
    assert bench.scheduler.idle
    assert {bench.finish(rid).kind for rid in rids} == {"abort"}


def test_an_idle_scheduler_can_be_paused_and_flushed() -> None:
    bench = SchedulerBench()
    bench.scheduler.handle(PauseGeneration(call_id=1))
    assert not bench.scheduler.step()
    bench.scheduler.on_idle()
    bench.scheduler.handle(FlushCache(call_id=2))
    assert [m.ok for m in bench.messages if isinstance(m, CallReply)] == [True, True]
