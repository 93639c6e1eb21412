"""Roster and supervisor with fake lives: the fleet heals, watchers hear of every change, a new controller adopts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from deploy.fleet.description import ModelDescription
from deploy.fleet.kept import FleetState
from deploy.fleet.messages import Beat, Ending, Life, Ready, ReplicaSpec, ReplicaStatus
from deploy.fleet.roster import Roster
from deploy.fleet.scaling import ReplicaView, Warmer
from deploy.fleet.state import Policy
from deploy.fleet.supervisor import LifeHandle, Supervisor
from tests.helpers import fleets
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

    async def placed(self) -> Ending | None:
        return None

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

    def launch(self, life: Life, spec: ReplicaSpec) -> LifeHandle:
        self.lives.append(FakeLife(life))
        return self.lives[-1]

    async def running(self) -> Sequence[tuple[Life, LifeHandle]]:
        return [(fake.life, fake) for fake in self._leftover]

    async def has_room(self, spec: ReplicaSpec) -> bool:
        return True


class FakeStore:
    """Keeps it here."""

    def __init__(self, kept: FleetState | None = None) -> None:
        self.kept = kept

    def load(self) -> FleetState | None:
        return self.kept

    def save(self, state: FleetState) -> None:
        self.kept = state


class FakeWarmer:
    """Warms until the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.done = asyncio.Event()
        self.fault: Exception | None = None

    async def warm(self, url: str, model: ModelDescription, siblings: Sequence[ReplicaView]) -> None:
        self.asked.append((url, model.name, len(siblings)))
        await self.done.wait()
        if self.fault is not None:
            raise self.fault


@asynccontextmanager
async def fleet(
    launcher: FakeLauncher,
    clock: FakeClock,
    replicas: int = 2,
    store: FakeStore | None = None,
    warmer: Warmer | None = None,
) -> AsyncIterator[Supervisor]:
    """A supervisor that tends `replicas` of one model; what `store` has goes before."""
    numbers = count()
    roster = Roster(Policy(lease_s=10, silence_s=5), lambda: f"life-{next(numbers)}", first_version=100)
    supervisor = Supervisor(roster, launcher, store or FakeStore(), clock, warmer)
    task = asyncio.create_task(supervisor.run())
    try:
        if store is None:
            await supervisor.settled()
            description = fleets.fleet(fleets.model(replicas=replicas))
            await supervisor.apply(description, fleets.specs(description), fleets.AROUND)
        yield supervisor
    finally:
        task.cancel()


async def statuses(supervisor: Supervisor) -> list[ReplicaStatus]:
    return (await supervisor.status()).replicas


def states(supervisor: Supervisor) -> list[str]:
    return [record.state for record in supervisor.snapshot.replicas]


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
        status = (await statuses(supervisor))[0]
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
        assert await supervisor.beat(Beat(life=launcher.lives[0].life))
        clock.advance(9)
        await asyncio.sleep(0.3)
        assert states(supervisor) == ["ready"]
        clock.advance(1)
        await until(lambda: states(supervisor) == ["silent"], 2, "its lease has ended")
        assert not launcher.lives[0].killed
        assert await supervisor.beat(Beat(life=launcher.lives[0].life))
        assert states(supervisor) == ["ready"]
        clock.advance(10)
        await until(lambda: states(supervisor) == ["silent"], 2, "silent again")
        clock.advance(5)
        await until(lambda: len(launcher.lives) == 2, 2, "the next life")
        assert launcher.lives[0].killed
        assert not await supervisor.beat(Beat(life=launcher.lives[0].life))


async def test_a_new_controller_adopts_what_runs_and_adds_what_is_missing() -> None:
    store = FakeStore()
    before = fleets.fleet(fleets.model(replicas=2))
    roster = Roster(Policy(), lambda: "x", first_version=1)
    roster.apply(before, fleets.specs(before), fleets.AROUND)
    store.kept = roster.state
    version = fleets.specs(before)["m"].version
    leftover = FakeLife(Life(replica_id="replica-1", incarnation="old", restarts=4, model="m", version=version))
    stranger = FakeLife(Life(replica_id="replica-7", incarnation="other", model="left long ago"))
    launcher = FakeLauncher([leftover, stranger])
    async with fleet(launcher, FakeClock(), store=store) as supervisor:
        watching = asyncio.create_task(supervisor.watch(0, 5))
        await asyncio.sleep(0.05)
        assert not watching.done()  # a snapshot now would tell gateways that the old one is starting
        assert await supervisor.beat(Beat(life=leftover.life))
        leftover.make_ready()
        assert (await watching).replicas[-1].state == "ready"
        await until(lambda: states(supervisor) == ["starting", "ready"], 2, "the missing one is started")
        assert [fake.life.replica_id for fake in launcher.lives] == ["replica-0"]
        assert (await statuses(supervisor))[1].record.restarts == 4
        assert (leftover.killed, stranger.killed) == (False, True)


async def test_what_was_applied_is_kept_until_it_changes() -> None:
    store = FakeStore(None)
    launcher = FakeLauncher()
    async with fleet(launcher, FakeClock(), store=store) as supervisor:
        await supervisor.settled()
        wanted = fleets.fleet(fleets.model(replicas=1))
        await supervisor.apply(wanted, fleets.specs(wanted), fleets.AROUND)
        assert store.kept is not None
        assert store.kept.description == wanted
        await supervisor.scale("m", 3)
        assert store.kept.groups["m"].wanted == 3
        assert len(launcher.lives) == 3


@pytest.mark.parametrize("fault", [None, OSError("refused")])
async def test_a_new_replica_is_warmed_before_it_counts(fault: Exception | None) -> None:
    launcher, warmer = FakeLauncher(), FakeWarmer()
    warmer.fault = fault
    async with fleet(launcher, FakeClock(), replicas=2, warmer=warmer) as supervisor:
        launcher.lives[0].make_ready()
        await until(lambda: warmer.asked, 1, "it is warmed")
        assert warmer.asked == [("http://127.0.0.1:1000", "m", 0)]
        assert states(supervisor) == ["starting", "starting"]
        warmer.done.set()
        await until(lambda: states(supervisor) == ["ready", "starting"], 1, "it counts")
        launcher.lives[1].make_ready()
        await until(lambda: states(supervisor) == ["ready", "ready"], 1, "both count")
        assert warmer.asked[1] == ("http://127.0.0.1:1001", "m", 1)


async def test_a_drained_replica_leaves_after_notice_and_another_takes_its_place() -> None:
    launcher, clock = FakeLauncher(), FakeClock()
    async with fleet(launcher, clock, replicas=2) as supervisor:
        for fake in launcher.lives:
            fake.make_ready()
        await until(lambda: states(supervisor) == ["ready", "ready"], 1, "ready")
        await supervisor.drain("replica-0")
        assert states(supervisor) == ["draining", "ready"]
        await until(lambda: len(launcher.lives) == 3, 2, "its successor")
        clock.advance(1)
        await until(lambda: states(supervisor) == ["ready", "starting"], 2, "gone")
        assert launcher.lives[0].stopped_with_s == 60
        with pytest.raises(KeyError):
            await supervisor.drain("replica-0")
