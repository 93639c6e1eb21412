"""Profiles beside the step loop: begun, counted, ended, and never in the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.builders import SchedulerBench
from worker.engine.profiling import ProfileFault
from worker.ipc.messages import CallReply, Shutdown, StartProfile, StopProfile
from worker.scheduler.profiles import Profiles


class Recorder:
    """Implements Profiler by a list."""

    def __init__(self) -> None:
        self.ranges: list[str] = []
        self.on = False
        self.start_fault: ProfileFault | None = None
        self.stop_fault: ProfileFault | None = None

    def start(self, asked: StartProfile) -> None:
        if self.start_fault is not None:
            raise self.start_fault
        assert not self.on
        self.on, self.ranges = True, []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.ranges.append(name)
        yield

    def stop(self, path: Path) -> None:
        assert self.on
        self.on = False
        if self.stop_fault is not None:
            raise self.stop_fault
        path.write_text("\n".join(self.ranges))


class Bench(SchedulerBench):
    """A scheduler that can be profiled."""

    def __init__(self, folder: Path, **runner: Any) -> None:
        super().__init__(runner)
        self.recorder = Recorder()
        self.folder = folder
        self.scheduler._profiles = Profiles(self.runner.launch, self.recorder)

    def ask(self, call: StartProfile | StopProfile) -> CallReply:
        self.scheduler.handle(call)
        reply = self.messages[-1]
        assert isinstance(reply, CallReply) and reply.call_id == call.call_id
        return reply

    def start(self, num_steps: int = 1000) -> CallReply:
        return self.ask(StartProfile(call_id=1, output_dir=str(self.folder / "new"), prefix="p", num_steps=num_steps))

    def stop(self) -> CallReply:
        return self.ask(StopProfile(call_id=2))


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_profile_holds_the_steps_until_it_is_stopped(tmp_path: Path, overlaps: bool) -> None:
    bench = Bench(tmp_path, overlaps=overlaps)
    rid = bench.submit([1, 2, 3], max_new_tokens=9, ignore_eos=True)
    bench.step(2)
    started = bench.start()
    bench.step(3)
    stopped = bench.stop()
    bench.run_until_idle()
    assert bench.tokens(rid) == bench.expected(rid)
    assert started.ok and stopped.ok and started.message == stopped.message
    path = Path(stopped.message)
    assert path.parent == tmp_path / "new" and path.name.startswith("p-") and path.name.endswith(".trace.json.gz")
    launched = [line for line in path.read_text().splitlines() if line.startswith("launch")]
    assert launched == [f"launch step {number}: 1 decodes, 0 prefill tokens" for number in (2, 3, 4)]
    waited = [line for line in path.read_text().splitlines() if line.startswith("wait")]
    assert waited == [f"wait for step {number}" for number in ((2, 3) if overlaps else (2, 3, 4))]


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_profile_of_so_many_steps_ends_by_itself(tmp_path: Path, overlaps: bool) -> None:
    bench = Bench(tmp_path, overlaps=overlaps)
    assert bench.start(num_steps=2).ok
    bench.submit([1, 2, 3], max_new_tokens=9, ignore_eos=True)
    bench.run_until_idle()
    assert not bench.recorder.on
    assert [line.split(":")[0] for line in bench.recorder.ranges if "launch" in line] == [
        "launch step 0",
        "launch step 1",
    ]
    refused = bench.stop()
    assert not refused.ok and "ended by itself and is in " + str(tmp_path) in refused.message
    assert bench.start().ok


def test_one_at_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.stop() == CallReply(call_id=2, ok=False, message="No profile is being recorded.")
    assert bench.start(num_steps=7).ok
    again = bench.start()
    assert not again.ok and "already" in again.message and " 7 " in again.message
    assert bench.stop().ok
    assert not bench.stop().ok
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.parametrize("faults", ["launch_faults", "result_faults"])
def test_a_failing_last_step_ends_it_too(tmp_path: Path, faults: str) -> None:
    bench = Bench(tmp_path)
    getattr(bench.runner, faults).add(0)
    assert bench.start(num_steps=1).ok
    bench.submit([1, 2, 3], max_new_tokens=3)
    bench.run_until_idle()
    assert not bench.recorder.on and bench.recorder.ranges[0].startswith("launch step 0")


def test_the_loop_is_the_runners_own_while_nothing_is_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    profiles = bench.scheduler._profiles
    assert profiles.launch == bench.runner.launch
    bench.start()
    assert profiles.launch != bench.runner.launch
    bench.stop()
    assert profiles.launch == bench.runner.launch


def test_what_cannot_be_recorded_or_written_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.recorder.start_fault = ProfileFault("No such thing.", param="activities")
    assert bench.start() == CallReply(call_id=1, ok=False, message="No such thing.", param="activities")
    assert list((tmp_path / "new").iterdir()) == []
    bench.recorder.start_fault = None
    bench.recorder.stop_fault = ProfileFault("The disk is full.", status=500)
    assert bench.start().ok
    assert bench.stop() == CallReply(call_id=2, ok=False, message="The disk is full.", status=500)
    assert list((tmp_path / "new").iterdir()) == []
    assert bench.stop() == CallReply(call_id=2, ok=False, message="No profile is being recorded.")
    bench.folder = tmp_path / "file"
    bench.folder.write_text("")
    refused = bench.start()
    assert (refused.ok, refused.param) == (False, "output_dir")
    assert refused.message == f"Nothing can be written to {bench.folder}/new: Not a directory."


def test_a_replica_that_ends_while_it_records_leaves_no_empty_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    path = bench.start().message
    with caplog.at_level(logging.WARNING):
        bench.scheduler.handle(Shutdown())
    assert bench.scheduler.shut_down and list((tmp_path / "new").iterdir()) == []
    assert path in caplog.text


def test_a_simulated_device_has_nothing_to_profile() -> None:
    bench = SchedulerBench()
    bench.scheduler.handle(StartProfile(call_id=1, output_dir="/tmp", prefix="p", num_steps=1))
    reply = bench.messages[-1]
    assert isinstance(reply, CallReply) and not reply.ok and "simulated" in reply.message
