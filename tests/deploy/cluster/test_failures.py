"""What dies, what is lost, how long until all is as before: one row of the table in docs/operations.md each."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.deploy.cluster.conftest import ClusterFleet, free_port
from tests.helpers.processes import assert_all_end, wait_until
from tests.helpers.ray_cluster import ray_cluster
from tests.helpers.steady_load import SteadyLoad

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(900)]

NODES = ("127.0.0.3", "127.0.0.4")
REPLICAS = 3
RATE = 5.0
RECOVERY_LIMIT_S = 90.0


@pytest.fixture(scope="module")
def tiny(sim_model: Path) -> Iterator[ClusterFleet]:
    """Three replicas on two nodes, ready at the gateway. Tests leave when three are ready again."""
    with ray_cluster(*NODES) as cluster:
        fleet = ClusterFleet(cluster, sim_model, replicas=REPLICAS)
        fleet.apply()
        fleet.wait_ready(REPLICAS)
        yield fleet


@contextmanager
def measured(what: str, fleet: ClusterFleet, is_whole: Callable[[], bool]) -> Iterator[SteadyLoad]:
    """Load while the block kills something; prints what was lost and when `is_whole` became true again."""
    with SteadyLoad(fleet.url, "tiny", RATE) as load:
        wait_until(lambda: load.outcomes["answered"] >= 5, 60, "answers come")
        began_s = time.monotonic()
        yield load
        wait_until(is_whole, RECOVERY_LIMIT_S, "the fleet is whole again")
        recovery_s = time.monotonic() - began_s
        answered = load.outcomes["answered"]
        wait_until(lambda: load.outcomes["answered"] >= answered + 5, 60, "answers come afterwards")
    print(
        f"\n| {what} | {load.outcomes['lost']} lost before the first byte, {load.outcomes['cut']} cut, "
        f"of {len(load.chats)} | whole after {recovery_s:.1f} s, longest wait {load.longest_wait_s():.1f} s | "
        f"{dict(load.faults)}"
    )


def replica_process(fleet: ClusterFleet, level: str) -> psutil.Process:
    """Of the first replica: its worker's frontend, or its actor."""
    frontend = psutil.Process(fleet.records()[0]["pid"])
    if level == "frontend":
        return frontend
    guard = frontend.parent()
    assert guard is not None
    actor = guard.parent()
    assert actor is not None
    return actor


@pytest.mark.parametrize("level", ["frontend", "actor"])
def test_a_killed_replica_is_replaced(tiny: ClusterFleet, level: str) -> None:
    before = tiny.ready()
    victim = tiny.records()[0]["incarnation"]

    def is_whole() -> bool:
        ready = tiny.ready()
        return len(ready) == REPLICAS and victim not in ready

    process = replica_process(tiny, level)
    with measured(f"a replica's {level}", tiny, is_whole) as load:
        process.kill()
    assert load.outcomes["lost"] == 0, load.faults
    assert len(tiny.ready() & before) == REPLICAS - 1


def test_a_killed_controller_costs_nothing(tiny: ClusterFleet) -> None:
    before = tiny.ready()
    (controller,) = tiny.cluster.processes("ray::ControllerActor")

    def is_whole() -> bool:
        return bool(tiny.cluster.processes("ray::ControllerActor")) and len(tiny.records()) == REPLICAS

    with measured("the controller", tiny, is_whole) as load:
        controller.kill()
        assert_all_end([controller.pid], 5)
    assert load.outcomes["lost"] == load.outcomes["cut"] == 0, load.faults
    assert tiny.ready() == before
    assert {record["state"] for record in tiny.records()} == {"ready"}


def gateway_processes(fleet: ClusterFleet) -> list[psutil.Process]:
    guards = [p for p in fleet.cluster.processes("-m gateway") if "deploy.guard" in p.cmdline()]
    return [child for guard in guards for child in guard.children()]


def test_a_further_gateway_sees_the_same_fleet_at_once(tiny: ClusterFleet) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/workers"
    command = ["-m", "gateway", "--ray-address", tiny.cluster.address, "--port", str(port)]
    with subprocess.Popen([sys.executable, *command], env=tiny.cluster.env, stderr=subprocess.DEVNULL) as gateway:
        try:
            wait_until(lambda: listens(port), 60, "it listens")
            began_s = time.monotonic()
            wait_until(lambda: known(url) == tiny.ready(), 30, "it knows the same replicas")
            print(f"\n| a further gateway | finds the fleet {time.monotonic() - began_s:.1f} s after it listens |")
        finally:
            gateway.terminate()


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def known(url: str) -> set[str]:
    workers = httpx.get(url, timeout=5, trust_env=False).json()["workers"]
    return {worker["incarnation"] for worker in workers if worker["state"] == "ready"}


@pytest.mark.parametrize("victim", ["gateway", "its actor"])
def test_a_killed_gateway_is_started_again(tiny: ClusterFleet, victim: str) -> None:
    before = tiny.ready()
    (old,) = gateway_processes(tiny)
    process = old if victim == "gateway" else tiny.cluster.processes("ray::GatewayActor")[0]

    def is_whole() -> bool:
        return tiny.ready() == before and old.pid not in [p.pid for p in gateway_processes(tiny)]

    with measured(f"the gateway: {victim}", tiny, is_whole) as load:
        process.kill()
        assert_all_end([old.pid], 5)
    assert load.outcomes["answered"] > 0


def test_a_replica_that_is_cut_off_loses_its_lease_and_comes_back(tiny: ClusterFleet) -> None:
    before = tiny.records()
    victim = before[0]["incarnation"]
    actor = replica_process(tiny, "actor")
    tree = [actor, *actor.children(recursive=True)]

    def is_whole() -> bool:
        return victim in tiny.ready() and tiny.records() == before

    with measured("a replica, cut off until its lease ends", tiny, is_whole) as load:
        for process in tree:
            process.suspend()
        try:
            wait_until(lambda: victim not in tiny.ready(), 60, "the gateway sends it nothing")
            wait_until(lambda: tiny.records()[0]["state"] == "silent", 60, "its lease has ended")
        finally:
            for process in tree:
                process.resume()
    assert load.outcomes["lost"] == 0, load.faults


def test_a_lost_node_is_replaced_elsewhere_and_comes_back(tiny: ClusterFleet) -> None:
    node = NODES[1]
    victims = {record["incarnation"] for record in tiny.records() if record["node"] == node}
    assert 0 < len(victims) < REPLICAS

    def is_whole() -> bool:
        ready = tiny.ready()
        return len(ready) == REPLICAS and not ready & victims

    with measured("a node", tiny, is_whole) as load:
        tiny.cluster.machines[node].power_off()
    assert load.outcomes["lost"] == 0, load.faults
    assert {record["node"] for record in tiny.records()} == {NODES[0]}
    tiny.cluster.add_node(node)
    tiny.cluster.canopy("scale", str(REPLICAS + 1))
    tiny.wait_ready(REPLICAS + 1)
    assert {record["node"] for record in tiny.records()} == set(NODES)
    tiny.apply()
    tiny.wait_ready(REPLICAS)
