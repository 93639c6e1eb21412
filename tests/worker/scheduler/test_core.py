"""The scheduler as a whole over a fake runner: messages, limits, cancellation, and the same tokens in every mode."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from tests.helpers.builders import SchedulerBench
from worker.ipc.messages import (
    AbortAll,
    CallReply,
    FlushCache,
    GetHotPrefixes,
    GetLoad,
    HotPrefixes,
    LoadReport,
    StepOutput,
    StopMatched,
)
from worker.token_ids import pack_tokens

MODES = list(itertools.product([False, True], [True, False]))


@pytest.fixture(
    params=MODES,
    ids=[f"{'overlap' if overlaps else 'sync'}-{'mixed' if mixed else 'prefill_first'}" for overlaps, mixed in MODES],
)
def mode(request: pytest.FixtureRequest) -> tuple[bool, bool]:
    return request.param  # type: ignore[no-any-return]


def make_bench(mode: tuple[bool, bool], runner: dict[str, Any] | None = None, **settings: Any) -> SchedulerBench:
    overlaps, mixed = mode
    return SchedulerBench({"overlaps": overlaps, **(runner or {})}, enable_mixed_chunk=mixed, **settings)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_everyone_gets_the_tokens_of_a_request_alone(mode: tuple[bool, bool], page_size: int, policy: str) -> None:
    bench = make_bench(
        mode,
        {"page_size": page_size, "num_pages": 192 // page_size},
        chunked_prefill_size=16,
        schedule_policy=policy,
    )
    for number in range(20):
        shared = [number % 3] * 20
        bench.submit(shared + [number] * (number % 7 + 1), max_new_tokens=5 + number * 3 % 40, seed=number)
        bench.step()
    bench.run_until_idle()
    for rid in bench.told:
        assert bench.tokens(rid) == bench.expected(rid)
        assert bench.finish(rid).kind in ("length", "stop")
    load = bench.load()
    assert load.finished_requests_total == 20
    assert load.generation_tokens_total == sum(len(told.tokens) for told in bench.told.values())
    assert load.cache_hit_rate > 0.2


def test_overlap_launches_the_next_step_before_the_results_of_the_last(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode)
    rid = bench.submit([1, 2, 3], max_new_tokens=3, ignore_eos=True)
    told = []
    for _ in range(5):
        bench.step()
        told.append((len(bench.runner.batches), len(bench.tokens(rid))))
    overlaps, _ = mode
    if overlaps:
        assert told == [(1, 0), (2, 1), (3, 2), (3, 3), (3, 3)]
    else:
        assert told == [(1, 1), (2, 2), (3, 3), (3, 3), (3, 3)]


def test_overlap_can_be_switched_off() -> None:
    bench = SchedulerBench({"overlaps": True}, disable_overlap_schedule=True)
    rid = bench.submit([1, 2, 3], max_new_tokens=3, ignore_eos=True)
    bench.step()
    assert len(bench.tokens(rid)) == 1


def test_a_request_that_met_eos_runs_once_more_under_overlap_unseen() -> None:
    probe = SchedulerBench({"eos_token_ids": ()})
    asked = probe.submit([5, 6, 7], seed=3, max_new_tokens=3)
    probe.run_until_idle()
    eos = probe.tokens(asked)[2]
    bench = SchedulerBench({"overlaps": True, "eos_token_ids": (eos,)})
    rid = bench.submit([5, 6, 7], seed=3, max_new_tokens=20)
    bench.run_until_idle()
    assert len(bench.tokens(rid)) == 3
    assert len(bench.runner.batches) == 4


def test_a_long_prompt_does_not_stall_decodes_in_mixed_steps() -> None:
    bench = SchedulerBench({"num_pages": 250}, chunked_prefill_size=16)
    running = bench.submit([1, 2], max_new_tokens=50, ignore_eos=True)
    bench.step(3)
    long = bench.submit([3] * 100, max_new_tokens=2, ignore_eos=True)
    before = len(bench.tokens(running))
    bench.step(6)
    assert len(bench.tokens(running)) == before + 6
    assert bench.tokens(long) == []
    chunks = [int(batch.query_lens[-1]) for batch in bench.runner.batches[3:9]]
    assert chunks == [15] * 6  # 16, less the decode in the step
    bench.run_until_idle()
    assert bench.tokens(long) == bench.expected(long)


def test_many_decodes_do_not_keep_a_new_prompt_out() -> None:
    """Even if the decodes alone exceed both compute budgets of a mixed step."""
    bench = SchedulerBench({"num_pages": 1000}, max_prefill_tokens=2, chunked_prefill_size=2)
    for first in range(1, 8):
        bench.submit([first, 9], max_new_tokens=100, ignore_eos=True)
        bench.step(3)
        assert bench.load().num_running_reqs == first


def test_prefill_first_keeps_decodes_out_of_prefill_steps() -> None:
    bench = SchedulerBench({"num_pages": 250}, chunked_prefill_size=16, enable_mixed_chunk=False)
    bench.submit([1, 2], max_new_tokens=50, ignore_eos=True)
    bench.step(3)
    bench.submit([3] * 40, max_new_tokens=2, ignore_eos=True)
    bench.step(4)
    shapes = [(batch.num_decode, len(batch.prefill_ids)) for batch in bench.runner.batches[3:7]]
    assert shapes == [(0, 16), (0, 16), (0, 8), (2, 0)]
    assert [bool(batch.samples[-1]) for batch in bench.runner.batches[3:6]] == [False, False, True]


def test_one_request_at_a_time_is_in_chunks() -> None:
    bench = SchedulerBench({"num_pages": 250}, chunked_prefill_size=16)
    for first in (1, 2, 3):
        bench.submit([first] * 30, max_new_tokens=2)
    bench.run_until_idle()
    partial = [int((~batch.samples).sum()) for batch in bench.runner.batches]
    assert max(partial) == 1
    assert sum(partial) >= 3


def test_prefill_max_requests_bounds_the_prompts_of_a_step(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"num_pages": 250}, prefill_max_requests=2, chunked_prefill_size=16)
    rids = [bench.submit([number] * 12, max_new_tokens=3) for number in range(5)]
    bench.run_until_idle()
    prompts = [len(batch.rows) - batch.num_decode for batch in bench.runner.batches]
    assert max(prompts) == 2
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in rids)


def test_without_chunks_a_prompt_is_computed_whole_however_long(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"num_pages": 250}, chunked_prefill_size=-1, max_prefill_tokens=20)
    rids = [bench.submit([number] * length, max_new_tokens=3) for number, length in enumerate((15, 90, 4, 4))]
    bench.run_until_idle()
    lengths = [batch.query_lens[batch.num_decode :].tolist() for batch in bench.runner.batches]
    assert [own for own in lengths if own] == [[15], [90], [4, 4]]
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in rids)


@pytest.mark.parametrize(("policy", "survives"), [("lru", False), ("lfu", True), ("slru", True), ("priority", True)])
def test_radix_eviction_policy(policy: str, survives: bool) -> None:
    """An old prefix that was often hit, by an urgent request, against newer ones that fill the pool."""
    bench = SchedulerBench({"num_pages": 64}, radix_eviction_policy=policy)
    for _ in range(4):
        bench.submit([7] * 10, priority=5, max_new_tokens=2)
        bench.run_until_idle()
    for first in range(10, 16):
        bench.submit([first] * 10, priority=0, max_new_tokens=2)
        bench.run_until_idle()
    probe = bench.submit([7] * 10, max_new_tokens=2)
    bench.run_until_idle()
    last = bench.told[probe].last
    assert last is not None and (last.cached_tokens == 9) == survives


def test_a_prompt_that_can_never_fit_is_refused_at_the_door(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"num_pages": 64})
    rid = bench.submit([1] * 59)
    fits = bench.submit([1] * 58, max_new_tokens=None, ignore_eos=True)
    bench.run_until_idle()
    reason = bench.finish(rid)
    assert (reason.kind, reason.status) == ("abort", 400)
    assert reason.message == "The prompt has 59 tokens, but at most 58 can be served: the KV pool holds 64."
    assert len(bench.tokens(fits)) == 4
    assert bench.load().aborted_requests_total == 1


def test_a_full_queue_refuses() -> None:
    bench = SchedulerBench({"max_rows": 1}, max_queued_requests=2)
    running = bench.submit([1, 2], max_new_tokens=4)
    bench.step()
    waiting = [bench.submit([1, 2], max_new_tokens=4) for _ in range(2)]
    refused = bench.submit([1, 2], max_new_tokens=4)
    bench.step()
    reason = bench.finish(refused)
    assert (reason.kind, reason.status, reason.message) == ("abort", 503, "The request queue is full.")
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in (running, *waiting))


def test_running_requests_are_bounded(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, max_running_requests=2)
    for number in range(6):
        bench.submit([number, 1], max_new_tokens=6, ignore_eos=True)
    most = 0
    for _ in range(60):
        bench.step()
        most = max(most, bench.load().num_running_reqs)
    assert most == 2
    assert bench.load().finished_requests_total == 6


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 8])
def test_abort_anywhere_frees_at_once(mode: tuple[bool, bool], steps: int) -> None:
    """0 steps: waiting; 1 to 3: in the middle of its prompt or just after; 8: decoding. Neighbours do not notice."""
    bench = make_bench(mode, chunked_prefill_size=16)
    neighbour = bench.submit([1, 2], max_new_tokens=12, ignore_eos=True)
    rid = bench.submit([3] * 40, max_new_tokens=20, ignore_eos=True)
    bench.step(steps)
    bench.abort(rid)
    assert bench.load().num_running_reqs + bench.load().num_waiting_reqs == 1
    bench.step()
    reason = bench.finish(rid)
    assert (reason.kind, reason.message) == ("abort", "The request was aborted.")
    bench.run_until_idle()
    assert bench.tokens(neighbour) == bench.expected(neighbour)
    assert bench.load().num_used_tokens == 0


def test_abort_all_and_unknown_rids(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 2})
    rids = [bench.submit([number, 2, 3], max_new_tokens=20, ignore_eos=True) for number in range(5)]
    bench.step(3)
    bench.abort("nobody")
    bench.scheduler.handle(StopMatched(rid="nobody", num_output_tokens=1))
    bench.scheduler.handle(AbortAll())
    bench.run_until_idle()
    assert {bench.finish(rid).kind for rid in rids} == {"abort"}
    assert bench.load().num_used_tokens == 0


def test_flush_is_refused_while_busy_and_empties_the_cache_when_idle(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode)
    bench.submit([1, 2, 3], max_new_tokens=4)
    bench.scheduler.handle(FlushCache(call_id=1))
    bench.step()
    bench.scheduler.handle(FlushCache(call_id=2))
    bench.run_until_idle()
    assert bench.load().num_evictable_tokens > 0
    bench.scheduler.handle(FlushCache(call_id=3))
    replies = [message for message in bench.messages if isinstance(message, CallReply)]
    assert [(reply.call_id, reply.ok) for reply in replies] == [(1, False), (2, False), (3, True)]
    assert "while requests are running or waiting" in replies[0].message
    assert bench.load().num_free_tokens == bench.load().max_total_num_tokens


def test_hot_prefixes_are_told_at_any_time() -> None:
    bench = SchedulerBench()
    for own in range(3):
        bench.submit([1, 2, 3, 4, 10 + own], max_new_tokens=2, ignore_eos=True)
        bench.run_until_idle()
    bench.submit([9], max_new_tokens=4)
    bench.scheduler.handle(GetHotPrefixes(call_id=7, max_tokens=100))
    (answer,) = [message for message in bench.messages if isinstance(message, HotPrefixes)]
    (prefix,) = answer.prefixes
    assert (answer.call_id, prefix.hits) == (7, 2)
    assert prefix.tokens == pack_tokens([1, 2, 3, 4])
    assert bench.load().prefill_s_total >= 0


def test_without_a_prefix_cache_no_prefix_is_hot() -> None:
    bench = SchedulerBench(disable_radix_cache=True)
    bench.scheduler.handle(GetHotPrefixes(call_id=7, max_tokens=100))
    assert bench.messages == [HotPrefixes(call_id=7, prefixes=[])]


def test_news_of_a_step_is_one_message() -> None:
    bench = SchedulerBench()
    for number in range(3):
        bench.submit([number, 2, 3], max_new_tokens=4, ignore_eos=True)
    bench.step(4)
    outputs = [message for message in bench.messages if isinstance(message, StepOutput)]
    assert [len(output.deltas) for output in outputs] == [3, 0, 0, 3]  # first tokens, and ends
    assert [output.rids for output in outputs] == [[], ["r0", "r1", "r2"], ["r0", "r1", "r2"], []]


def test_deltas_carry_queue_time_and_cached_tokens() -> None:
    bench = SchedulerBench({"max_rows": 1})
    bench.submit([1, 2, 3], max_new_tokens=2, ignore_eos=True)
    waits = bench.submit([1, 2, 3], max_new_tokens=2, ignore_eos=True)
    bench.step(2)
    bench.clock.advance(1.5)
    bench.run_until_idle()
    last = bench.told[waits].last
    assert last is not None
    assert (last.queue_time_s, last.cached_tokens, last.prompt_tokens, last.completion_tokens) == (1.5, 2, 3, 2)


def test_load_report_counts_tokens(mode: tuple[bool, bool]) -> None:
    bench = make_bench(mode, {"max_rows": 1, "num_pages": 50})
    bench.submit([1, 2, 3], max_new_tokens=9, ignore_eos=True)
    bench.submit([1, 2, 3, 4], max_new_tokens=9, ignore_eos=True)
    bench.step(4)
    bench.scheduler.handle(GetLoad(call_id=7))
    report = bench.messages[-1]
    assert isinstance(report, LoadReport)
    assert (report.call_id, report.num_running_reqs, report.num_waiting_reqs) == (7, 1, 1)
    assert report.num_waiting_tokens == 4
    assert report.num_used_tokens == 6  # 3 of the prompt, 3 decodes
    assert report.num_used_tokens + report.num_free_tokens + report.num_evictable_tokens == 50
    assert report.token_usage == pytest.approx(6 / 50)
    assert report.new_token_ratio < 0.7
    bench.run_until_idle()
    assert bench.load().new_token_ratio == 0.7
    assert bench.load().num_used_tokens == 0


def test_ready_message_tells_the_frontend_its_limits() -> None:
    ready = SchedulerBench({"num_pages": 16, "page_size": 4}, max_running_requests=3).scheduler.ready_message()
    assert (ready.context_len, ready.max_total_num_tokens, ready.max_req_input_len) == (256, 64, 58)
    assert (ready.max_running_requests, ready.page_size, ready.eos_token_ids) == (3, 4, [0])
    assert ready.kv_pool_bytes == 8 * 64


def test_log_lines_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "worker.scheduler.stats")
    bench = SchedulerBench(decode_log_interval=2)
    bench.submit([1, 2, 3], max_new_tokens=3, ignore_eos=True)
    bench.step(2)
    bench.clock.advance(2.0)
    bench.step()
    assert caplog.messages == [
        "max_total_num_tokens=64, chunked_prefill_size=128, max_prefill_tokens=16384, max_running_requests=8, "
        "context_len=256, available_cpu_mem=1.00 GB",
        "Prefill batch. #new-seq: 1, #new-token: 3, #cached-token: 0, token usage: 0.05, #running-req: 0, "
        "#queue-req: 0",
        "Decode batch. #running-req: 1, #token: 5, token usage: 0.08, cuda graph: False, "
        "gen throughput (token/s): 1.50, #queue-req: 0",
    ]


def test_seeds_are_drawn_for_requests_without_one() -> None:
    bench = SchedulerBench()
    bench.submit([1, 2, 3], max_new_tokens=2)
    bench.submit([1, 2, 3], max_new_tokens=2, seed=5)
    bench.run_until_idle()
    seeds = [admission.seed for batch in bench.runner.batches for admission in batch.admissions]
    assert seeds == [1234567, 5]


def test_a_live_rid_twice_is_an_assertion() -> None:
    bench = SchedulerBench()
    bench.submit([1], rid="same")
    with pytest.raises(AssertionError, match="same is already live"):
        bench.submit([1], rid="same")
