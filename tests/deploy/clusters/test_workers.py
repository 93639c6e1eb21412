"""The keeper of one's own machines, against workers that fail, leave and hang."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from common.errors import UserError
from deploy.clusters.workers import WorkersKeeper, WorkersPlan, run_command
from tests.helpers.processes import until

GOOD, BAD = "10.0.0.11", "10.0.0.12"
CONFIG = {
    "provider": {"type": "local", "head_ip": "10.0.0.10", "worker_ips": [GOOD, BAD]},
    "auth": {"ssh_user": "ubuntu"},
    "file_mounts": {"~/canopy/dist": "dist"},
    "setup_commands": ["setup"],
    "worker_start_ray_commands": ["start $RAY_HEAD_IP"],
}


class Machines:
    """Stands in for ssh and rsync: says what was run where, and fails or is inactive on demand."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.inactive: set[str] = set()

    async def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        address = command[-1].split("@")[1].split(":")[0] if command[0] == "rsync" else command[-2].split("@")[1]
        said = "copy" if command[0] == "rsync" else command[-1].removeprefix("bash --login -c ").strip("'")
        self.calls.append((address, said))
        if address in self.failing:
            return 1, "warming up\nno space left\n"
        if "is-active" in said:
            return (3 if address in self.inactive else 0), ""
        return 0, ""

    def at(self, address: str) -> list[str]:
        return [said for where, said in self.calls if where == address]

    def joins(self, address: str) -> int:
        return sum("start " in said and "systemctl" not in said for said in self.at(address))


def plan() -> WorkersPlan:
    return WorkersPlan.read(CONFIG, head="10.0.0.10", key="/home/ubuntu/key.pem")


@pytest.fixture
async def kept() -> tuple[Machines, asyncio.Event, asyncio.Task[None]]:
    machines, stop = Machines(), asyncio.Event()
    keeper = WorkersKeeper(plan(), machines.run, check_s=0.001)
    return machines, stop, asyncio.create_task(keeper.keep(stop))


Kept = tuple[Machines, asyncio.Event, "asyncio.Task[None]"]


async def test_each_worker_is_copied_to_set_up_and_started_once(kept: Kept) -> None:
    machines, stop, task = kept
    await until(lambda: len(machines.calls) > 20, 5, "workers are watched")
    for address in (GOOD, BAD):
        first = machines.at(address)[:3]
        assert first == ["copy", "setup", "export RAY_HEAD_IP=10.0.0.10; start $RAY_HEAD_IP"]
        assert machines.joins(address) == 1
    stop.set()
    await task


async def test_a_worker_that_fails_is_tried_again_and_others_do_not_wait(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    machines, stop, task = kept
    await until(lambda: machines.joins(BAD) == 1, 5, "it has joined")
    machines.failing.add(BAD)
    await until(lambda: machines.at(BAD).count("copy") > 3, 5, "several tries")
    assert machines.joins(GOOD) == machines.joins(BAD) == 1
    assert f"{BAD} does not join: copying ~/canopy ended with code 1: no space left" in caplog.text
    machines.failing.clear()
    await until(lambda: machines.joins(BAD) == 2, 5, "it joins in the end")
    stop.set()
    await task


async def test_a_worker_whose_ray_ended_joins_again(kept: Kept) -> None:
    machines, stop, task = kept
    await until(lambda: machines.joins(GOOD) == 1, 5, "it has joined")
    machines.inactive.add(GOOD)
    await until(lambda: machines.joins(GOOD) > 1, 5, "it joins again")
    assert machines.joins(BAD) == 1
    stop.set()
    await task


async def test_the_end_stops_every_worker_reachable_or_not(kept: Kept) -> None:
    machines, stop, task = kept
    await until(lambda: machines.joins(GOOD) == machines.joins(BAD) == 1, 5, "both have joined")
    machines.failing.add(BAD)
    stop.set()
    await task
    for address in (GOOD, BAD):
        assert machines.at(address)[-1] == "sudo systemctl stop canopy-worker@ubuntu"


def test_what_workers_would_not_get_is_refused() -> None:
    with pytest.raises(UserError, match="/etc/motd"):
        WorkersPlan.read({**CONFIG, "file_mounts": {"/etc/motd": "motd"}}, head="10.0.0.10", key="key")


async def test_commands_have_a_code_an_output_and_an_end() -> None:
    assert await run_command(["sh", "-c", "echo out; echo err >&2; exit 7"], 5) == (7, "out\nerr\n")
    code, said = await run_command(["sleep", "60"], 0.05)
    assert (code, said) == (124, "not done after 0.05 s")
