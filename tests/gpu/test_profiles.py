"""A profile on a GPU holds its kernels beside our steps, of passes in flight too."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from common.clock import MonotonicClock
from tests.gpu.reference import SMALL, make_checkpoint, random_prompts
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.engine.torch_profiler import TorchProfiler
from worker.ipc.messages import CallReply, GenerateRequest, SchedulerMessage, StartProfile, StopProfile
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler


@pytest.mark.timeout(300)
def test_a_profile_holds_steps_and_kernels(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_checkpoint(tmp_path / "model", SMALL, 1)
    settings = WorkerSettings(
        model_path=str(tmp_path / "model"), max_total_tokens=20_000, max_running_requests=8, mem_fraction_static=0.4
    )
    runner, messages = create_runner(settings), list[SchedulerMessage]()
    profiler = TorchProfiler(runner.info.device)
    scheduler = Scheduler(settings, runner, MonotonicClock(), messages.append, lambda: 0, profiler=profiler)
    for number, prompt in enumerate(random_prompts(SMALL, seed=1)[:4]):
        sampling = SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True, seed=number)
        scheduler.handle(GenerateRequest(rid=str(number), input_ids=prompt, sampling=sampling))
    scheduler.step()
    scheduler.handle(StartProfile(call_id=1, output_dir=str(tmp_path / "profile"), prefix="p", num_steps=1000))
    for _ in range(20):
        scheduler.step()
    scheduler.handle(StopProfile(call_id=2))
    while scheduler.step():
        pass
    runner.close()
    replies = [message for message in messages if isinstance(message, CallReply)]
    assert [reply.ok for reply in replies] == [True, True], replies
    events = json.loads(gzip.decompress(Path(replies[1].message).read_bytes()))["traceEvents"]
    categories = {event.get("cat") for event in events}
    assert {"kernel", "user_annotation"} <= categories, categories
    print(f"\n{len(events)} events, {sorted({e['name'] for e in events if e.get('cat') == 'user_annotation'})[:8]}")
