"""A hundred thousand requests through every policy: each ends exactly once with its own tokens, none is starved, and
the pool is whole at the end."""

from __future__ import annotations

import random
from bisect import bisect, insort
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tests.helpers.builders import make_settings
from tests.helpers.clock import FakeClock
from tests.helpers.fake_runner import runner_info
from tests.helpers.fast_runner import FastRunner, outputs_of
from worker.ipc.messages import AbortRequest, FinishReason, GenerateRequest, SchedulerMessage, StepOutput
from worker.sampling_params import SamplingParams
from worker.scheduler.constants import MAX_OVERTAKEN
from worker.scheduler.core import Scheduler

REQUESTS = 10_000  # in each of the ten runs, of which some are left to `make test-long`
ROWS = 64
URGENT = {"enable_priority_scheduling": True, "retraction_policy": "priority"}
RUNS = [  # settings, overlap, page size
    ({"schedule_policy": "fcfs"}, True, 1),
    pytest.param(
        {"schedule_policy": "fcfs", "disable_radix_cache": True, "enable_mixed_chunk": False},
        False,
        16,
        marks=pytest.mark.long,
    ),
    ({"schedule_policy": "lpm"}, True, 4),
    pytest.param(
        {"schedule_policy": "lpm", "radix_eviction_policy": "lfu", "chunked_prefill_size": 64},
        False,
        1,
        marks=pytest.mark.long,
    ),
    pytest.param({"schedule_policy": "dfs-weight", "radix_eviction_policy": "slru"}, True, 1, marks=pytest.mark.long),
    pytest.param({"schedule_policy": "lof", "prefill_max_requests": 4}, True, 4, marks=pytest.mark.long),
    pytest.param(
        {"schedule_policy": "random", "chunked_prefill_size": -1, "max_prefill_tokens": 256},
        True,
        1,
        marks=pytest.mark.long,
    ),
    pytest.param(
        {"schedule_policy": "priority", "radix_eviction_policy": "priority", **URGENT}, True, 1, marks=pytest.mark.long
    ),
    ({"schedule_policy": "lof", "schedule_low_priority_values_first": True, **URGENT}, False, 4),
    pytest.param({"schedule_policy": "fcfs", "max_queued_requests": 100, **URGENT}, True, 16, marks=pytest.mark.long),
]


class Traffic:
    """Bursts of short requests with few distinct starts, some of them dropped by their clients, and the books of it."""

    def __init__(self, settings: dict[str, Any], overlaps: bool, page_size: int) -> None:
        self.rng = random.Random(0)
        self.heads = [[self.rng.randrange(50) for _ in range(48)] for _ in range(12)]
        info = runner_info(num_pages=2048 // page_size, page_size=page_size, max_rows=ROWS, overlaps=overlaps)
        self.runner = FastRunner(info)
        self.asked: dict[str, SamplingParams] = {}
        self.priorities: list[int | None] = []  # by arrival number
        self.told: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.aborted: set[str] = set()
        self.scheduler = Scheduler(make_settings(**settings), self.runner, FakeClock(), self.tell, lambda: 0)

    def tell(self, message: SchedulerMessage) -> None:
        assert isinstance(message, StepOutput)
        for rid, token in zip(message.rids, message.tokens, strict=True):
            assert rid not in self.ended, f"{rid}: news after its end"
            self.told[rid].append(token)
        for delta in message.deltas:
            assert delta.rid not in self.ended, f"{delta.rid}: news after its end"
            self.told[delta.rid] += delta.token_ids
            if delta.finish is not None:
                self.ended[delta.rid] = delta.finish

    def submit(self) -> None:
        number, rng = len(self.asked), self.rng
        rid = f"r{number}"
        sampling = SamplingParams(max_new_tokens=rng.randrange(1, 17), seed=number, ignore_eos=rng.random() < 0.5)
        prompt = rng.choice(self.heads)[: rng.randrange(0, 49, 12)] + rng.choices(range(50), k=rng.randrange(1, 12))
        self.asked[rid], self.told[rid] = sampling, []
        self.priorities.append(rng.choice([None, 0, 5, 30]))
        self.scheduler.handle(
            GenerateRequest(rid=rid, input_ids=prompt, sampling=sampling, priority=self.priorities[-1])
        )

    def run(self, count: int) -> None:
        """Send `count` requests in bursts and wait for all of them."""
        while len(self.asked) < count:
            burst = self.rng.choice([0, 0, 40, 120, 250]) if self.num_live < 2 * ROWS else 0
            for _ in range(min(burst, count - len(self.asked))):
                self.submit()
            if self.num_live:
                self.abort(f"r{self.rng.randrange(len(self.asked) - self.num_live, len(self.asked))}")
            for _ in range(6):
                self.scheduler.step()
        while self.scheduler.step():
            pass
        self.scheduler.on_idle()

    def abort(self, rid: str) -> None:
        """Drop a request, if it has not ended."""
        self.aborted.add(rid)
        self.scheduler.handle(AbortRequest(rid=rid))

    @property
    def num_live(self) -> int:
        return len(self.told) - len(self.ended)


@pytest.mark.parametrize(("settings", "overlaps", "page_size"), RUNS, ids=lambda value: str(value)[:60])
def test_ten_thousand_requests(settings: dict[str, Any], overlaps: bool, page_size: int) -> None:
    traffic = Traffic(settings, overlaps, page_size)
    traffic.run(REQUESTS)
    assert traffic.ended.keys() == traffic.asked.keys()
    for rid, sampling in traffic.asked.items():
        reason, got = traffic.ended[rid], traffic.told[rid]
        expected = outputs_of(int(rid[1:]), sampling, traffic.runner.info)
        if reason.kind == "abort":
            assert rid in traffic.aborted or reason.status == 503
            assert got == expected[: len(got)]
        else:
            assert got == expected
    report = traffic.scheduler.load_report(0)
    kinds = Counter(reason.kind for reason in traffic.ended.values())
    assert report.finished_requests_total == kinds["length"] + kinds["stop"] > 0.3 * REQUESTS
    assert report.num_used_tokens == 0
    assert report.num_free_tokens + report.num_evictable_tokens == report.max_total_num_tokens
    lane_of = traffic.priorities if "enable_priority_scheduling" in settings else [None] * REQUESTS
    for lane in set(lane_of):
        passes = most_overtaken(number for number in traffic.runner.admitted if lane_of[number] == lane)
        sorts = settings["schedule_policy"] not in ("fcfs", "priority")
        if sorts:
            assert 0 < passes <= MAX_OVERTAKEN + traffic.runner.most_admitted
        else:  # only while its start is computed for another, for two overlapping steps at most
            assert passes <= (0 if "disable_radix_cache" in settings else 2 * traffic.runner.most_admitted)


def most_overtaken(order: Iterable[int]) -> int:
    """How many later arrivals started before a request, at most. `order`: arrival numbers as they started."""
    started: list[int] = []
    most = 0
    for number in order:
        most = max(most, len(started) - bisect(started, number))
        insort(started, number)
    return most
