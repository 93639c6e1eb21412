"""The gateway of a cluster's fleet dies, and a further one joins: rows of the table in docs/operations.md."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from common.process import free_port
from tests.deploy.cluster.conftest import ClusterFleet, measured, ready_fleet
from tests.helpers.processes import assert_all_end, wait_until

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(900)]

REPLICAS = 2


@pytest.fixture(scope="module")
def tiny(sim_model: Path) -> Iterator[ClusterFleet]:
    """Two replicas, ready at the gateway."""
    with ready_fleet(sim_model, REPLICAS) as fleet:
        yield fleet


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


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/liveness", timeout=30, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


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
        if victim == "gateway":
            assert_all_end([old.pid], 5)
            wait_until(lambda: answers(tiny.url), 60, "its successor answers")
            began_s = time.monotonic()
            wait_until(lambda: tiny.ready() == before, 30, "it has found the fleet again")
            found_s = time.monotonic() - began_s
            print(f"\n| a gateway restarted alone | finds the fleet {found_s:.2f} s after its first answer |")
            assert found_s <= 2
    if victim == "gateway":  # who came while it was away has waited; only what it was answering is lost
        assert not [fault for fault in load.faults if "503" in fault or "ConnectError" in fault], load.faults
    else:  # the old gateway has finished what it had
        assert set(load.outcomes) == {"answered"}, load.faults
