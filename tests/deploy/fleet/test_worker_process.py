"""One life as real processes, with a stand-in worker: ready, ended, stopped, and killed at every level."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.fleet.messages import Ending, Life, Ready, ReplicaSpec
from deploy.fleet.worker_process import WorkerProcess, tail
from tests.helpers.processes import is_running, until


async def start(tmp_path: Path, behaviour: str = "serve", **settings: Any) -> WorkerProcess:
    spec = ReplicaSpec(
        model="stand-in",
        settings={"behaviour": behaviour, **settings},
        log_dir=str(tmp_path / "logs"),
        command=[sys.executable, "-m", "tests.helpers.stand_in_worker"],
    )
    process = WorkerProcess(spec, Life(replica_id="replica-3", incarnation="abc"), node="10.0.0.1")
    await process.start()
    return process


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in worker runs in a directory of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def tree() -> list[int]:
    return [p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


async def test_a_life_from_ready_to_stopped(tmp_path: Path) -> None:
    process = await start(tmp_path, served_model_name="tiny")
    ready = await process.ready()
    assert isinstance(ready, Ready)
    assert (ready.model, ready.incarnation, ready.node, ready.max_running_requests) == ("tiny", "abc", "10.0.0.1", 8)
    pids = tree()
    assert {ready.pid, ready.scheduler_pid} < set(pids)
    work_dir = Path(psutil.Process(ready.pid).cwd())
    await process.stop(grace_s=10)
    ending = await process.ended()
    assert ending.reason == "stopped"
    assert not any(map(is_running, pids))
    assert not work_dir.exists()


async def test_a_worker_that_ignores_the_stop_is_killed(tmp_path: Path) -> None:
    process = await start(tmp_path, "stubborn")
    await process.ready()
    await process.stop(grace_s=0.3)
    assert not process.is_alive
    assert tree() == []


@pytest.mark.parametrize("victim", ["frontend", "scheduler", "guard"])
async def test_a_killed_process_ends_the_whole_tree_at_once(tmp_path: Path, victim: str) -> None:
    process = await start(tmp_path)
    ready = await process.ready()
    assert isinstance(ready, Ready)
    pids = tree()
    guard = psutil.Process(ready.pid).ppid()
    os.kill({"frontend": ready.pid, "scheduler": ready.scheduler_pid, "guard": guard}[victim], signal.SIGKILL)
    await until(lambda: not any(map(is_running, pids)), 1, "all have ended")
    ending = await process.ended()
    if victim == "scheduler":
        assert ending.reason == f"its scheduler process {ready.scheduler_pid} died"
    else:
        assert ending.reason == "its worker was killed by signal 9"


@pytest.mark.parametrize(
    ("behaviour", "code", "last"), [("refuse", 2, "--model-path: there is no such model."), ("crash", 1, "boom")]
)
async def test_a_worker_that_ends_early_leaves_its_code_and_last_words(
    tmp_path: Path, behaviour: str, code: int, last: str
) -> None:
    outcome = await (await start(tmp_path, behaviour)).ready()
    assert isinstance(outcome, Ending)
    assert (outcome.code, outcome.log_tail[-1]) == (code, last)
    assert outcome.reason == f"its worker exited with code {code}"


async def test_it_can_be_stopped_before_it_is_ready(tmp_path: Path) -> None:
    process = await start(tmp_path, "hang")
    await process.stop(grace_s=5)
    assert isinstance(await process.ready(), Ending)
    assert tree() == []


def test_the_tail_holds_the_latest_life_only(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("--- 1 ---\nold\n--- 2 ---\nnew\nlast\n")
    assert tail(log) == ["new", "last"]
    log.write_text("--- 1 ---\n" + "\n".join(map(str, range(100))) + "\n")
    assert tail(log) == [str(n) for n in range(80, 100)]
