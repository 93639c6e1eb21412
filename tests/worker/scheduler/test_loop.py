"""The process loop: drain, step, wait when idle, leave on Shutdown."""

from __future__ import annotations

import pytest

from tests.helpers.builders import SchedulerBench
from worker.ipc.messages import FrontendMessage, GenerateRequest, Shutdown
from worker.sampling_params import SamplingParams
from worker.scheduler.loop import run


class Inbox:
    """Messages that arrive one batch per wait."""

    def __init__(self, *batches: list[FrontendMessage]) -> None:
        self._batches = list(batches)
        self._arrived: list[FrontendMessage] = []
        self.waits = 0

    def receive(self) -> list[FrontendMessage]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self) -> None:
        self.waits += 1
        self._arrived = self._batches.pop(0)


def test_serves_what_arrives_and_waits_only_when_idle() -> None:
    bench = SchedulerBench({"overlaps": True})
    first, second = "r0", "r1"
    for rid in (first, second):
        bench.expect([1, 2, 3], rid, max_new_tokens=5, ignore_eos=True)
    requests = [
        GenerateRequest(rid=rid, input_ids=[1, 2, 3], sampling=SamplingParams(max_new_tokens=5, ignore_eos=True))
        for rid in (first, second)
    ]
    inbox = Inbox([requests[0]], [requests[1]], [Shutdown()])
    run(bench.scheduler, inbox.receive, inbox.wait)
    assert inbox.waits == 3
    assert bench.tokens(first) == bench.expected(first)
    assert bench.tokens(second) == bench.expected(second)


def test_a_leak_shows_when_the_replica_falls_idle() -> None:
    bench = SchedulerBench()
    bench.scheduler._pool.alloc(1)
    with pytest.raises(AssertionError, match="KV pool leaks"):
        run(bench.scheduler, list, lambda: None)


def test_shutdown_drops_running_requests() -> None:
    bench = SchedulerBench()
    rid = bench.submit([1, 2, 3], max_new_tokens=50, ignore_eos=True)
    inbox = Inbox()
    batches = iter([[], [], [Shutdown()]])
    run(bench.scheduler, lambda: next(batches), inbox.wait)
    assert bench.told[rid].finish is None
    assert 0 < len(bench.tokens(rid)) < 50
