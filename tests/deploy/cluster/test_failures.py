"""What dies, what is lost, how long until all is as before: one row of the table in docs/operations.md each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.deploy.cluster.conftest import ClusterFleet, measured
from tests.helpers.processes import assert_all_end, wait_until
from tests.helpers.ray_cluster import ray_cluster

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(900)]

NODES = ("127.0.0.3", "127.0.0.4")
REPLICAS = 3
WATCH = """
import sys, time
from deploy.fleet.client import connected, controller_of, status_of
from deploy.local.plan import RunningFleet

with connected(fleet := RunningFleet.elsewhere(sys.argv[1])):
    controller = controller_of(fleet)
    while True:
        states = {replica.record.incarnation: replica.record.state for replica in status_of(controller).replicas}
        print(states.get(sys.argv[2], "gone"), flush=True)
        time.sleep(0.2)
"""  # `canopy status` takes seconds on a busy machine, and a silent replica is soon given up


@pytest.fixture(scope="module")
def tiny(sim_model: Path) -> Iterator[ClusterFleet]:
    """Three replicas on two nodes, ready at the gateway. Tests leave when three are ready again."""
    with ray_cluster(*NODES) as cluster:
        fleet = ClusterFleet(cluster, sim_model, replicas=REPLICAS)
        fleet.apply()
        fleet.wait_ready(REPLICAS)
        yield fleet


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


@contextmanager
def states_of(fleet: ClusterFleet, incarnation: str) -> Iterator[Iterator[str]]:
    """Its state at the controller, again and again."""
    command = [sys.executable, "-c", WATCH, fleet.cluster.address, incarnation]
    with subprocess.Popen(command, env=fleet.cluster.env, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            yield (line.strip() for line in watcher.stdout)
        finally:
            watcher.kill()


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


def test_a_replica_that_is_cut_off_loses_its_lease_and_comes_back(tiny: ClusterFleet) -> None:
    before = tiny.records()
    victim = before[0]["incarnation"]
    actor = replica_process(tiny, "actor")
    tree = [actor, *actor.children(recursive=True)]

    def is_whole() -> bool:
        return victim in tiny.ready() and tiny.records() == before

    with measured("a replica, cut off until its lease ends", tiny, is_whole) as load:
        try:
            with states_of(tiny, victim) as states:
                assert next(states) == "ready"
                for process in tree:
                    process.suspend()
                assert next(state for state in states if state != "ready") == "silent"
            wait_until(lambda: victim not in tiny.ready(), 10, "the gateway sends it nothing")
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
    tiny.cluster.canopy("scale", str(REPLICAS + 2))  # Ray goes round the nodes: of two in a row one goes there
    tiny.wait_ready(REPLICAS + 2)
    assert {record["node"] for record in tiny.records()} == set(NODES)
    tiny.apply()
    tiny.wait_ready(REPLICAS)
