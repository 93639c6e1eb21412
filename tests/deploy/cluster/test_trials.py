"""`canopy tune --apply` on a fleet under load: a canary beside the replicas, kept or dropped, and no request fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.cluster.conftest import ClusterFleet, ready_fleet
from tests.helpers.processes import wait_until
from tests.helpers.ray_cluster import ROOT
from tests.helpers.steady_load import SteadyLoad

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(1200)]

REPLICAS = 2
BAD = {"device": "sim", "sim-speed": 0.1, "max-running-requests": 2}  # slow, so that clients are no bottleneck
APPLY = ("tune", "--apply", "--window", "12", "--trial-window", "5", "--max-trial-windows", "8")


@pytest.fixture(scope="module")
def tiny(sim_model: Path) -> Iterator[ClusterFleet]:
    """Two replicas that may run two requests each, on a node with room for more."""
    with ready_fleet(sim_model, REPLICAS) as fleet:
        fleet.model["engine"] = BAD
        fleet.gateway["policy"] = "least_load"  # a new replica gets requests whose prompts others have cached
        fleet.apply()
        fleet.wait_ready(REPLICAS)
        yield fleet


def busy(fleet: ClusterFleet) -> SteadyLoad:
    """More clients than the replicas have room for."""
    return SteadyLoad(fleet.url, "tiny", 200.0, max_tokens=32, at_once=40)


def versions(fleet: ClusterFleet) -> list[str]:
    return [record["version"] for record in fleet.records()]


def test_a_change_that_helps_is_rolled_out_and_fails_no_request(tiny: ClusterFleet) -> None:
    before = set(versions(tiny))
    journal = tiny.cluster.directory / "journal.jsonl"
    with busy(tiny) as load:
        wait_until(lambda: load.outcomes["answered"] >= 20, 120, "answers come")
        done = tiny.cluster.canopy(*APPLY, "--experiments", "1", "--journal", str(journal), "--json", timeout_s=900)
        assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert len(told["experiments"]) == 1, told["stopped"]
    (entry,) = told["experiments"]
    (line,) = [json.loads(line) for line in journal.read_text().splitlines()]
    print(f"\n{done.stderr}\n{dict(load.outcomes)}")
    assert line.pop("time")
    assert line == entry
    assert entry["change"]["max-running-requests"] == 8
    assert entry["outcome"] == "kept"
    assert entry["measured"]["low"] > 0
    assert set(load.outcomes) == {"answered"}, load.faults
    after = set(versions(tiny))
    assert len(after) == 1
    assert after != before
    assert len(tiny.records()) == REPLICAS
    tiny.wait_ready(REPLICAS)


def test_a_canary_whose_experimenter_is_killed_leaves_by_itself(tiny: ClusterFleet) -> None:
    tiny.apply()
    before = sorted(versions(tiny))
    command = [sys.executable, "-m", "deploy.cli", *APPLY, "--experiments", "1", "--journal", ""]
    with busy(tiny) as load:
        wait_until(lambda: load.outcomes["answered"] >= 20, 120, "answers come")
        process = subprocess.Popen(command, env=tiny.cluster.env, cwd=ROOT)
        try:
            wait_until(lambda: len(set(versions(tiny))) == 2, 180, "a canary is there")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        wait_until(lambda: sorted(versions(tiny)) == before, 240, "the canary has left")
    assert set(load.outcomes) == {"answered"}, load.faults


def test_a_fleet_with_nothing_to_do_is_left_alone(tiny: ClusterFleet) -> None:
    before = sorted(versions(tiny))
    done = tiny.cluster.canopy(*APPLY, "--journal", "")
    assert done.returncode == 0, done.stderr
    assert "too little to do" in done.stdout
    assert sorted(versions(tiny)) == before
    assert tiny.cluster.canopy("tune", "--apply", "--model", "other", "--journal", "").returncode == 2
