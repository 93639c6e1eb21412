"""Roster and supervisor with fake lives: the fleet heals, watchers hear of every change, a new controller adopts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from deploy.fleet.messages import Ending, Life, Ready
from deploy.fleet.roster import Roster
from deploy.fleet.state import Policy
from deploy.fleet.supervisor import LifeHandle, Supervisor
from tests.helpers.clock import FakeClock
from tests.helpers.processes import until


class FakeLife:
    """A life that is made ready and ended by the test."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.becomes: asyncio.Future[Ready | Ending] = asyncio.get_running_loop().create_future()
        self.ends: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.killed = False
        self.stopped_with_s: float | None = None

    def make_ready(self) -> None:
        number = self.life.replica_id.removeprefix("replica-")
        self.becomes.set_result(
            Ready(
                url=f"http://127.0.0.1:100{number}",
                pid=1,
                scheduler_pid=2,
                model="m",
                max_total_num_tokens=10,
                max_running_requests=1,
            )
        )

    def end(self, ending: Ending) -> None:
        if not self.becomes.done():
            self.becomes.set_result(ending)
        if not self.ends.done():
            self.ends.set_result(ending)

    async def ready(self) -> Ready | Ending:
        return await self.becomes

    async def ended(self) -> Ending:
        return await self.ends

    async def stop(self, grace_s: float) -> None:
        self.stopped_with_s = grace_s
        self.end(Ending(reason="stopped", code=0))

    def kill(self) -> None:
        self.killed = True
        self.end(Ending(reason="killed"))


class FakeLauncher:
    """Keeps every life it launched; `leftover` are lives of an earlier controller."""

    def __init__(self, leftover: Sequence[FakeLife] = ()) -> None:
        self.lives: list[FakeLife] = []
        self._leftover = leftover

    def launch(self, life: Life) -> LifeHandle:
        self.lives.append(FakeLife(life))
        return self.lives[-1]

    async def running(self) -> Sequence[tuple[Life, LifeHandle]]:
        return [(fake.life, fake) for fake in self._leftover]


@asynccontextmanager
async def fleet(launcher: FakeLauncher, clock: FakeClock, replicas: int = 2) -> AsyncIterator[Supervisor]:
    numbers = count()
    roster = Roster("m", "/logs", Policy(lease_s=10), lambda: f"life-{next(numbers)}", first_version=100)
    supervisor = Supervisor(roster, launcher, clock)
    task = asyncio.create_task(supervisor.run(replicas))
    try:
        await until(lambda: len(supervisor.status().replicas) == replicas, 2, "all replicas are launched")
        yield supervisor
    finally:
        task.cancel()


def states(supervisor: Supervisor) -> list[str]:
    return [replica.record.state for replica in supervisor.status().replicas]


async def test_replicas_become_ready_and_a_watcher_hears_of_it() -> None:
    launcher = FakeLauncher()
    async with fleet(launcher, FakeClock()) as supervisor:
        seen = await supervisor.watch(0, 1)
        assert [r.state for r in seen.replicas] == ["starting", "starting"]
        waiting = asyncio.create_task(supervisor.watch(seen.version, 5))
        await asyncio.sleep(0)
        launcher.lives[1].make_ready()
        changed = await asyncio.wait_for(waiting, 1)
        assert changed.version > seen.version
        assert [(r.replica_id, r.state) for r in changed.replicas] == [
            ("replica-0", "starting"),
            ("replica-1", "ready"),
        ]


async def test_a_watch_without_news_returns_the_same_version_in_time() -> None:
    async with fleet(FakeLauncher(), FakeClock()) as supervisor:
        seen = await supervisor.watch(0, 1)
        assert (await supervisor.watch(seen.version, 0.05)) == seen


async def test_a_dead_replica_is_told_of_and_restarted() -> None:
    launcher = FakeLauncher()
    async with fleet(launcher, FakeClock(), replicas=1) as supervisor:
        launcher.lives[0].make_ready()
        await until(lambda: states(supervisor) == ["ready"], 1, "ready")
        launcher.lives[0].end(Ending(reason="its worker was killed by signal 9", code=137, log_tail=["last words"]))
        await until(lambda: len(launcher.lives) == 2, 1, "the next life")
        assert launcher.lives[0].killed
        status = supervisor.status().replicas[0]
        assert (status.record.state, status.record.restarts) == ("starting", 1)
        assert (status.record.message, status.log_tail) == ("its worker was killed by signal 9", ["last words"])
        assert status.log_path == "/logs/replica-0.log"
        launcher.lives[1].make_ready()
        await until(lambda: states(supervisor) == ["ready"], 1, "ready again")


async def test_a_silent_replica_loses_its_lease_and_is_replaced() -> None:
    launcher, clock = FakeLauncher(), FakeClock()
    async with fleet(launcher, clock, replicas=1) as supervisor:
        launcher.lives[0].make_ready()
        await until(lambda: states(supervisor) == ["ready"], 1, "ready")
        clock.advance(9)
        supervisor.beat(launcher.lives[0].life)
        clock.advance(9)
        await asyncio.sleep(0.3)
        assert states(supervisor) == ["ready"]
        clock.advance(1)
        await until(lambda: len(launcher.lives) == 2, 2, "the next life")
        assert launcher.lives[0].killed


async def test_a_new_controller_adopts_what_runs_and_adds_what_is_missing() -> None:
    leftover = FakeLife(Life(replica_id="replica-1", incarnation="old", restarts=4))
    leftover.make_ready()
    launcher = FakeLauncher([leftover])
    async with fleet(launcher, FakeClock(), replicas=2) as supervisor:
        await until(lambda: states(supervisor) == ["starting", "ready"], 2, "the old one is ready")
        assert [fake.life.replica_id for fake in launcher.lives] == ["replica-0"]
        assert supervisor.status().replicas[1].record.restarts == 4
        assert not leftover.killed


async def test_a_drained_replica_leaves_after_notice() -> None:
    launcher, clock = FakeLauncher(), FakeClock()
    async with fleet(launcher, clock, replicas=2) as supervisor:
        for fake in launcher.lives:
            fake.make_ready()
        await until(lambda: states(supervisor) == ["ready", "ready"], 1, "ready")
        await supervisor.drain("replica-0")
        assert states(supervisor) == ["draining", "ready"]
        clock.advance(1)
        await until(lambda: len(supervisor.status().replicas) == 1, 2, "gone")
        assert launcher.lives[0].stopped_with_s == 60
        assert len(launcher.lives) == 2
        with pytest.raises(KeyError):
            await supervisor.drain("replica-0")
