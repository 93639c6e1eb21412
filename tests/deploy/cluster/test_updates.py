"""Rolling updates and scaling under load: no request fails, and never are fewer than all but one replica ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deploy.cluster.conftest import ClusterFleet, ready_fleet
from tests.helpers.processes import wait_until
from tests.helpers.steady_load import SteadyLoad

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(900)]

RATE = 30.0
REPLICAS = 4


@pytest.fixture(scope="module")
def tiny(sim_model: Path) -> Iterator[ClusterFleet]:
    """Four replicas on one node, which has room for more."""
    with ready_fleet(sim_model, REPLICAS) as fleet:
        yield fleet


@dataclass(slots=True)
class ReadyCount:
    """How many replicas the gateway had ready, looked at four times a second."""

    fleet: ClusterFleet
    seen: list[int] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.25):
            self.seen.append(len(self.fleet.ready()))


def test_a_rolling_update_under_load_fails_no_request(tiny: ClusterFleet) -> None:
    before = {record["version"] for record in tiny.records()}
    count = ReadyCount(tiny)
    with SteadyLoad(tiny.url, "tiny", RATE) as load, count.watching():
        wait_until(lambda: load.outcomes["answered"] >= 20, 60, "answers come")
        began_s = time.monotonic()
        printed = tiny.apply(engine={**tiny.model["engine"], "schedule-policy": "lpm"})
        took_s = time.monotonic() - began_s
    after = {record["version"] for record in tiny.records()}
    print(f"\nrolling update: {dict(load.outcomes)} in {took_s:.0f} s, fewest ready {min(count.seen)}")
    assert "one replica at a time" in printed
    assert len(after) == 1
    assert after != before
    assert set(load.outcomes) == {"answered"}, load.faults
    assert min(count.seen) >= REPLICAS - 1
    assert len(tiny.ready()) == REPLICAS


def test_an_update_that_cannot_start_is_held_and_costs_nothing(tiny: ClusterFleet) -> None:
    before = tiny.ready()
    count = ReadyCount(tiny)
    broken = {**tiny.model["engine"], "sim-profile": "/no/such/profile.json"}
    with SteadyLoad(tiny.url, "tiny", 5.0) as load, count.watching():
        wait_until(lambda: load.outcomes["answered"] >= 5, 60, "answers come")
        done = tiny.cluster.apply(tiny.description(engine=broken))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the update to version" in done.stderr
    assert "is held" in done.stderr
    assert "/no/such/profile.json" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert set(load.outcomes) == {"answered"}, load.faults
    assert min(count.seen) >= REPLICAS - 1
    wait_until(lambda: len(tiny.ready()) == REPLICAS, 60, "four replicas")
    assert len(tiny.ready() & before) >= REPLICAS - 1
    table = tiny.cluster.canopy("status").stdout
    assert "is held" in table
    assert "/no/such/profile.json" in table


def test_scaling_up_and_down_under_load_fails_no_request(tiny: ClusterFleet) -> None:
    tiny.apply(replicas=1)
    tiny.wait_ready(1)
    with SteadyLoad(tiny.url, "tiny", 10.0) as load:
        for replicas in (6, 2):
            began_s = time.monotonic()
            done = tiny.cluster.canopy("scale", str(replicas))
            assert done.returncode == 0, done.stderr
            assert f"-> {replicas}" in done.stdout
            tiny.wait_ready(replicas)
            print(f"\nscale to {replicas}: {time.monotonic() - began_s:.0f} s, {dict(load.outcomes)}")
    assert set(load.outcomes) == {"answered"}, load.faults
    assert tiny.cluster.canopy("scale", "0").returncode == 2


def test_new_gateway_settings_fail_no_request(tiny: ClusterFleet) -> None:
    description = tiny.description()
    description["models"][0]["replicas"] = len(tiny.records())
    description["gateway"]["policy"] = "round_robin"
    with SteadyLoad(tiny.url, "tiny", 10.0) as load:
        wait_until(lambda: load.outcomes["answered"] >= 10, 60, "answers come")
        done = tiny.cluster.apply(description)
        assert done.returncode == 0, done.stderr
        answered = load.outcomes["answered"]
        wait_until(lambda: load.outcomes["answered"] >= answered + 10, 60, "answers come afterwards")
    print(f"\nnew gateway settings: {dict(load.outcomes)}, longest wait {load.longest_wait_s():.1f} s")
    assert "gateway: new settings" in done.stdout
    assert set(load.outcomes) == {"answered"}, load.faults
