"""Following the fleet's controller: joins, deaths, restarts, drains, and a controller that goes away."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
import pytest

from common.fleet import FleetSnapshot, ReplicaRecord
from gateway.fleet import discovery
from gateway.fleet.discovery import FleetDiscovery, FleetLost, StaticDiscovery
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerStatus
from tests.helpers.processes import until

A, B = "http://10.0.0.1:1000", "http://10.0.0.2:1000"
State = Literal["starting", "ready", "silent", "draining", "failed"]


def record(name: str, incarnation: str, url: str, state: State = "ready") -> ReplicaRecord:
    return ReplicaRecord(
        replica_id=name, incarnation=incarnation, url=url, model="m", state=state, max_total_num_tokens=100
    )


def follow(registry: Registry, *records: ReplicaRecord) -> None:
    FleetDiscovery(registry, FakeWatch()).apply(FleetSnapshot(version=1, replicas=list(records)))


class FakeWatch:
    """FleetWatch: long-polls a queue of snapshots; exceptions are raised."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[FleetSnapshot | Exception] = asyncio.Queue()
        self.asked: list[int] = []
        self.closed = False

    async def watch(self, version: int, timeout_s: float) -> bytes:
        self.asked.append(version)
        item = await self.queue.get()
        if isinstance(item, Exception):
            raise item
        return msgspec.msgpack.encode(item)

    async def close(self) -> None:
        self.closed = True


def states(registry: Registry) -> dict[str, str]:
    return {worker.name: worker.status.value for worker in registry.snapshot.workers}


def test_ready_replicas_serve_at_once() -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A), record("r1", "i", "", "starting"))
    assert states(registry) == {"r0": "ready"}
    worker = registry.snapshot.workers[0]
    assert (worker.model, worker.identity.incarnation, worker.identity.max_total_tokens) == ("m", "i", 100)


def test_our_own_probes_are_not_overruled() -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A))
    registry.degrade(A, "silent")
    follow(registry, record("r0", "i", A))
    assert states(registry) == {"r0": "degraded"}


@pytest.mark.parametrize("gone", [(), (record("r0", "i", A, "failed"),), (record("r0", "i", "", "starting"),)])
def test_dead_replicas_are_removed(gone: tuple[ReplicaRecord, ...]) -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A))
    follow(registry, *gone)
    assert not registry.snapshot.workers


def test_a_silent_replica_stays_with_those_who_know_it_and_nobody_else_takes_it() -> None:
    knows, does_not = Registry(), Registry()
    follow(knows, record("r0", "i", A))
    for registry in (knows, does_not):
        follow(registry, record("r0", "i", A, "silent"))
    assert states(knows) == {"r0": "ready"}
    assert not does_not.snapshot.workers


def test_a_restart_is_another_life_wherever_it_is() -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A))
    life = registry.snapshot.workers[0].life
    follow(registry, record("r0", "j", A))
    same_place = registry.snapshot.workers[0]
    assert same_place.life > life and states(registry) == {"r0": "ready"}
    follow(registry, record("r0", "k", B))
    assert [(worker.url, worker.life > same_place.life) for worker in registry.snapshot.workers] == [(B, True)]


def test_a_restart_after_a_lost_connection_serves_again() -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A))
    registry.lost(A, "refused")
    follow(registry, record("r0", "j", A))
    assert states(registry) == {"r0": "ready"}


def test_another_replica_at_an_old_address() -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A))
    follow(registry, record("r1", "j", A))
    assert states(registry) == {"r1": "ready"}


def test_draining_replicas_get_nothing_new() -> None:
    registry = Registry()
    follow(registry, record("r0", "i", A), record("r1", "i", B))
    registry.snapshot.workers[0].load.begin(1, None)
    follow(registry, record("r0", "i", A, "draining"), record("r1", "i", B))
    assert states(registry) == {"r0": "draining", "r1": "ready"}
    follow(registry, record("r1", "i", B))
    assert states(registry) == {"r1": "ready"}


def test_workers_from_elsewhere_are_left_alone() -> None:
    registry = Registry()
    registry.add(B, source="api", name="mine")
    follow(registry, record("r0", "i", A))
    follow(registry)
    assert states(registry) == {"mine": WorkerStatus.STARTING.value}


async def test_the_last_known_fleet_stays_while_the_controller_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_FIRST_BACKOFF_S", 0.01)
    registry, watch = Registry(), FakeWatch()
    task = asyncio.create_task(FleetDiscovery(registry, watch).run())
    watch.queue.put_nowait(FleetSnapshot(version=5, replicas=[record("r0", "i", A)]))
    await until(lambda: states(registry), 2, "the first snapshot")
    watch.queue.put_nowait(FleetLost("restarting"))
    watch.queue.put_nowait(FleetSnapshot(version=5, replicas=[]))  # unchanged: not applied
    watch.queue.put_nowait(FleetLost("restarting"))
    await until(lambda: len(watch.asked) >= 4, 2, "it asks again")
    assert states(registry) == {"r0": "ready"}
    watch.queue.put_nowait(FleetSnapshot(version=9, replicas=[record("r1", "i", B)]))
    await until(lambda: "r1" in states(registry), 2, "the new controller's snapshot")
    await until(lambda: watch.asked[-1] == 9, 2, "the next poll")
    assert states(registry) == {"r1": "ready"}
    assert watch.asked[:2] == [0, 5]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert watch.closed


async def test_static_workers_are_registered_in_normal_form() -> None:
    registry = Registry()
    await StaticDiscovery(registry, ["http://h:1/", "http://h:1", "https://h"]).run()
    assert [worker.url for worker in registry.snapshot.workers] == ["http://h:1", "https://h:443"]
