"""The simulation's own truth: the same arrivals lead to the same scheduling as on the CPU runner with a real model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers.tiny_models import TinyModel
from worker.assembly import running_scheduler
from worker.config import WorkerSettings
from worker.engine.sim.clock import VirtualClock
from worker.ipc.messages import GenerateRequest, LoadReport, SchedulerMessage, StepOutput
from worker.sampling_params import SamplingParams

COUNTERS = (
    "steps_total",
    "cache_hit_rate",
    "prompt_tokens_total",
    "cached_tokens_total",
    "generation_tokens_total",
    "retracted_requests_total",
    "finished_requests_total",
)
Arrivals = dict[int, list[GenerateRequest]]  # by number of the step before which they come


def arrivals(seed: int) -> Arrivals:
    """Forty requests, half of them with one of four heads, that come in bursts."""
    random = np.random.default_rng(seed)
    heads = random.integers(3, 130, (4, 30))
    found: Arrivals = {}
    for number in range(40):
        own = random.integers(3, 130, int(random.integers(1, 60)))
        prompt = np.concatenate((heads[random.integers(4)], own)) if random.random() < 0.5 else own
        sampling = SamplingParams(max_new_tokens=int(random.integers(1, 40)), temperature=0.0, ignore_eos=True)
        request = GenerateRequest(rid=f"r{number}", input_ids=prompt.tolist(), sampling=sampling)
        found.setdefault(int(random.integers(0, 60)), []).append(request)
    return found


def run(settings: WorkerSettings, requests: Arrivals) -> tuple[LoadReport, dict[str, tuple[int, int]], list[list[str]]]:
    """The final counters; cached and generated tokens by request; who got tokens, step by step."""
    tokens: dict[str, tuple[int, int]] = {}
    news: list[list[str]] = []

    def receive(message: SchedulerMessage) -> None:
        assert isinstance(message, StepOutput)
        news.append([*message.rids, *(delta.rid for delta in message.deltas)])
        for delta in message.deltas:
            if delta.finish is not None:
                assert delta.finish.kind == "length"
                tokens[delta.rid] = (delta.cached_tokens, delta.completion_tokens)

    with running_scheduler(settings, receive, VirtualClock()) as scheduler:
        for step in range(max(requests) + 1):
            for request in requests.get(step, []):
                scheduler.handle(request)
            scheduler.step()
        while scheduler.step():
            pass
        scheduler.on_idle()
        return scheduler.load_report(0), tokens, news


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule_policy": "lpm", "page_size": 4, "chunked_prefill_size": 32},
        {"enable_mixed_chunk": False, "schedule_conservativeness": 0.1},
        {"disable_radix_cache": True, "chunked_prefill_size": 16},
    ],
)
def test_scheduling_is_the_same(tiny_model: Callable[[str], TinyModel], settings: dict[str, Any]) -> None:
    common = {"max_total_tokens": 400, "max_running_requests": 8, "page_size": 1, "chunked_prefill_size": 64}
    common |= {"model_path": str(tiny_model("llama").path), "disable_overlap_schedule": True, "cpu_threads": 1}
    requests = arrivals(7)
    real, real_tokens, real_news = run(WorkerSettings(device="cpu", **(common | settings)), requests)
    simulated, tokens, news = run(WorkerSettings(device="sim", **(common | settings)), requests)
    assert news == real_news
    assert tokens == real_tokens and len(tokens) == 40
    for counter in COUNTERS:
        assert getattr(simulated, counter) == getattr(real, counter), counter
    assert real.finished_requests_total == 40
    assert (real.cached_tokens_total == 0) == settings.get("disable_radix_cache", False)
    if settings.get("schedule_conservativeness"):
        assert real.retracted_requests_total > 0
