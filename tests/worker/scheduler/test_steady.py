"""When steps may be taken together. That they then lead to the same state is tests/deploy/plan/test_fleet.py's."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.sim_bench import h200, llama_8b
from worker.config import WorkerSettings
from worker.ipc.messages import GenerateRequest
from worker.sampling_params import SamplingParams
from worker.simulated import simulated

TOKEN = 7


class Bench:
    """A scheduler on a simulated device whose answers are one token."""

    def __init__(self, **settings: Any) -> None:
        chosen = WorkerSettings(model_path="none", device="sim", **settings)
        ids = np.array([TOKEN], np.int32)
        _, self.runner, self.scheduler = simulated(chosen, llama_8b(), h200(), ids, lambda news: None)

    def submit(self, rid: str, max_new_tokens: int, **sampling: Any) -> None:
        params = SamplingParams(max_new_tokens=max_new_tokens, **{"ignore_eos": True, **sampling})
        self.scheduler.handle(GenerateRequest(rid=rid, input_ids=[int(rid) + 10] * 20, sampling=params))

    def steps_until_steady(self) -> int:
        for count in range(1, 10):
            self.scheduler.step()
            if self.scheduler.steady_steps():
                return count
        return 0

    def skip(self, steps: int) -> None:
        done_s = float(self.runner.repeat_ends_s(steps)[-1])
        self.scheduler.skip(steps, TOKEN, lambda batch: self.runner.repeat(batch, steps, done_s))


def test_nothing_is_steady_before_all_prompts_are_computed_and_their_first_tokens_known() -> None:
    bench = Bench()
    assert bench.scheduler.steady_steps() == 0
    bench.submit("1", 50)
    assert bench.scheduler.steady_steps() == 0
    assert bench.steps_until_steady() == 2
    bench.submit("2", 50)
    assert bench.scheduler.steady_steps() == 0


def test_it_lasts_until_the_first_request_has_launched_its_last_token() -> None:
    bench = Bench()
    bench.submit("1", 50)
    bench.submit("2", 30)
    assert bench.steps_until_steady() == 2
    assert bench.scheduler.steady_steps() == 28
    bench.skip(20)
    assert bench.scheduler.steady_steps() == 8
    bench.skip(8)
    assert bench.scheduler.steady_steps() == 0
    assert bench.scheduler.load_report(0).generation_tokens_total == 2 * 29
    while bench.scheduler.step():
        pass
    bench.scheduler.on_idle()
    assert bench.scheduler.load_report(0).generation_tokens_total == 80


def test_who_waits_for_room_does_not_disturb_it() -> None:
    bench = Bench(max_running_requests=1)
    bench.submit("1", 50)
    bench.submit("2", 50)
    assert bench.steps_until_steady() > 0


def test_answers_that_may_end_early_and_pages_that_run_out_bound_it() -> None:
    bench = Bench()
    bench.submit("1", 50, stop_token_ids=(3,))
    assert bench.steps_until_steady() == 0
    bench = Bench(max_total_tokens=144, schedule_conservativeness=0.0)  # together they would need 160
    bench.submit("1", 60)
    assert bench.steps_until_steady() == 2
    bench.submit("2", 60)
    assert bench.steps_until_steady() == 2
    assert bench.scheduler.load_report(0).num_running_reqs == 2
    assert 0 < bench.scheduler.steady_steps() <= 52


def test_a_scheduler_without_overlap_or_with_events_takes_every_step() -> None:
    for settings in ({"disable_overlap_schedule": True}, {"kv_events_config": {"publisher": "zmq"}}):
        bench = Bench(**settings)
        bench.submit("1", 50)
        assert bench.steps_until_steady() == 0
