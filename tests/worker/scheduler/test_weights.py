"""Replacing the weights under load: every answer is by the old ones or by the new ones, and none is lost."""

from __future__ import annotations

import logging
from concurrent.futures import wait
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import SchedulerBench
from worker.ipc.messages import (
    CacheChanges,
    CacheCleared,
    CallReply,
    ContinueGeneration,
    PauseGeneration,
    StepOutput,
    UpdateWeights,
    WeightsUpdated,
)

PROMPTS = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 8, 9, 10], [12, 13, 14]]


class Swap(SchedulerBench):
    """A bench whose weights are replaced. `load` has them read first, so that steps decide what happens next."""

    def begin(self, path: str = "7", call_id: int = 1, *, load: bool = True, **fields: Any) -> None:
        self.scheduler.handle(UpdateWeights(call_id=call_id, model_path=path, **fields))
        if load:
            self.loaded()

    def loaded(self) -> None:
        wait([self.scheduler._weights._loading], 30)

    @property
    def updated(self) -> WeightsUpdated | None:
        return next((m for m in self.messages if isinstance(m, WeightsUpdated)), None)

    @property
    def refused(self) -> CallReply | None:
        return next((m for m in self.messages if isinstance(m, CallReply) and not m.ok), None)

    def submit_all(self, max_new_tokens: int = 12) -> list[str]:
        return [self.submit(prompt, max_new_tokens=max_new_tokens, ignore_eos=True) for prompt in PROMPTS]

    def weights_of(self, rid: str) -> int:
        """Which ones a whole answer is by: those in use when it was told, and it must be by them alone."""
        told_by, in_use = set(), 0
        for message in self.messages:
            if isinstance(message, WeightsUpdated):
                in_use = int(message.model_path)
            elif isinstance(message, StepOutput) and rid in {*message.rids, *(d.rid for d in message.deltas)}:
                told_by.add(in_use)
        (number,) = told_by
        assert self.tokens(rid) == self.expected(rid, number)
        return number


@pytest.mark.parametrize("overlaps", [False, True])
def test_who_has_begun_ends_by_the_old_weights_and_others_wait(overlaps: bool) -> None:
    bench = Swap({"overlaps": overlaps}, max_running_requests=3)
    old = bench.submit_all()
    bench.step(3)
    bench.runner.may_load.clear()
    bench.begin(load=False, weight_version="step-7")
    bench.step(2)
    while_loading = bench.submit([20, 21], max_new_tokens=3)
    bench.step(1)
    assert bench.updated is None and bench.load().num_running_reqs == 3
    bench.runner.may_load.set()
    bench.loaded()
    held = bench.submit_all()
    bench.run_until_idle()
    assert bench.updated == WeightsUpdated(call_id=1, model_path="7", weight_version="step-7", num_held_back=6)
    assert [bench.weights_of(rid) for rid in old] == [0, 0, 0, 7]
    assert [bench.weights_of(rid) for rid in [while_loading, *held]] == [7] * 5
    late = bench.submit_all()
    bench.run_until_idle()
    assert [bench.weights_of(rid) for rid in late] == [7] * 4
    assert bench.told[late[0]].last is not None and bench.told[late[0]].last.cached_tokens > 0


def test_nothing_computed_by_the_old_weights_is_reused() -> None:
    bench = Swap(kv_events_config={"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*"})
    bench.submit(list(range(1, 40)), max_new_tokens=4)
    bench.run_until_idle()
    bench.begin()
    again = bench.submit(list(range(1, 40)), max_new_tokens=4)
    bench.run_until_idle()
    assert bench.weights_of(again) == 7
    assert bench.told[again].last is not None and bench.told[again].last.cached_tokens == 0
    kinds = [type(c) for m in bench.messages if isinstance(m, CacheChanges) for c in m.changes]
    assert kinds.count(CacheCleared) == 1
    cleared = next(
        i for i, m in enumerate(bench.messages) if isinstance(m, CacheChanges) and CacheCleared() in m.changes
    )
    assert bench.updated is not None and cleared < bench.messages.index(bench.updated)


@pytest.mark.parametrize("overlaps", [False, True])
def test_all_can_be_aborted_instead(overlaps: bool) -> None:
    bench = Swap({"overlaps": overlaps}, max_running_requests=3)
    rids = bench.submit_all(max_new_tokens=100)
    bench.step(4)
    bench.begin(abort_all=True)
    bench.step(1)
    assert bench.updated is not None and bench.updated.weight_version is None
    ends = [bench.finish(rid) for rid in rids]
    assert {(end.kind, end.status) for end in ends} == {("abort", 400)}
    assert "weights were replaced" in ends[0].message
    after = bench.submit_all()
    bench.run_until_idle()
    assert [bench.weights_of(rid) for rid in after] == [7] * 4


@pytest.mark.parametrize("abort_all", [False, True])
def test_weights_that_cannot_be_loaded_change_nothing(abort_all: bool) -> None:
    bench = Swap(max_running_requests=3)
    rids = bench.submit_all()
    bench.step(2)
    bench.begin("no number", abort_all=abort_all)
    bench.run_until_idle()
    assert bench.refused == CallReply(
        call_id=1, ok=False, message="no number is no number.", status=400, param="model_path"
    )
    assert bench.updated is None
    assert [bench.weights_of(rid) for rid in rids] == [0] * 4


def test_a_fault_of_ours_is_logged_and_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Swap()

    def broken(_: str) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(bench.runner, "load_weights", broken)
    with caplog.at_level(logging.ERROR):
        bench.begin()
        bench.run_until_idle()
    assert bench.refused is not None
    assert bench.refused.message == "The weights cannot be loaded; the replica's log says why."
    assert "secret" in caplog.text


def test_one_update_at_a_time() -> None:
    bench = Swap()
    bench.runner.may_load.clear()
    bench.begin(load=False)
    bench.begin("8", call_id=2, load=False)
    assert bench.refused is not None and (bench.refused.call_id, bench.refused.status) == (2, 409)
    bench.runner.may_load.set()
    bench.loaded()
    bench.run_until_idle()
    assert bench.updated is not None and bench.updated.call_id == 1
    bench.begin("9", call_id=3)
    bench.run_until_idle()
    assert bench.runner.weights == 9


def test_the_wait_for_those_who_have_begun_can_be_bounded() -> None:
    bench = Swap({"num_pages": 200}, max_running_requests=3)
    old = bench.submit_all(max_new_tokens=30)
    bench.step(2)
    bench.begin(drain_timeout_s=5.0)
    late = bench.submit([20, 21], max_new_tokens=3)
    bench.step(3)
    assert bench.refused is None and bench.tokens(late) == []
    bench.clock.advance(5.0)
    bench.step(1)
    assert bench.refused is not None and bench.refused.param == "drain_timeout_s"
    assert bench.refused.message == "After 5 s 3 requests had not ended, so the weights stay as they were."
    bench.run_until_idle()
    assert [bench.weights_of(rid) for rid in [*old, late]] == [0] * 5


@pytest.mark.parametrize("retract", [False, True])
def test_a_pause_with_requests_half_way_lets_no_weights_in(retract: bool) -> None:
    bench = Swap({"overlaps": True}, max_running_requests=3)
    rids = bench.submit_all()
    bench.step(3)
    bench.scheduler.handle(PauseGeneration(call_id=8, retract=retract))
    bench.begin()
    assert not bench.scheduler.step()
    assert bench.refused is not None and (bench.refused.status, bench.refused.param) == (409, "abort_all_requests")
    assert "3 requests half way" in bench.refused.message
    bench.scheduler.handle(ContinueGeneration(call_id=9))
    bench.run_until_idle()
    assert [bench.weights_of(rid) for rid in rids] == [0] * 4


def test_a_pause_before_anything_has_begun_is_a_good_moment() -> None:
    bench = Swap()
    bench.scheduler.handle(PauseGeneration(call_id=8))
    waiting = bench.submit_all()
    bench.begin()
    assert not bench.scheduler.step()
    assert bench.updated is not None and bench.updated.num_held_back == 4
    bench.scheduler.on_idle()
    bench.scheduler.handle(ContinueGeneration(call_id=9))
    bench.run_until_idle()
    assert [bench.weights_of(rid) for rid in waiting] == [7] * 4


def test_an_idle_scheduler_waits_for_what_is_being_read() -> None:
    bench = Swap()
    bench.runner.may_load.clear()
    bench.begin(load=False)
    assert bench.scheduler.step() and bench.scheduler.step()
    bench.runner.may_load.set()
    bench.run_until_idle()
    assert bench.updated is not None and bench.runner.weights == 7


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 25), st.integers(0, 3)), min_size=1, max_size=14),
    st.integers(0, 13),
    st.booleans(),
)
def test_retracted_requests_come_back_by_the_weights_they_began_with(
    requests: list[tuple[int, int, int]], begin_at: int, overlaps: bool
) -> None:
    """A pool so small that running requests are retracted, which then wait among those that are held back."""
    bench = Swap({"num_pages": 40, "overlaps": overlaps}, chunked_prefill_size=4)
    bench.reserve_nothing()
    rids = []
    for index, (prompt_len, outputs, steps) in enumerate(requests):
        if index == begin_at:
            bench.begin()
        rids.append(bench.submit(list(range(3, 3 + prompt_len)), max_new_tokens=outputs, ignore_eos=True))
        bench.step(steps)
    if begin_at >= len(requests):
        bench.begin()
    bench.run_until_idle()
    assert bench.updated is not None
    numbers = [bench.weights_of(rid) for rid in rids]
    assert numbers == sorted(numbers)  # by arrival: fcfs
    bench.audit()
