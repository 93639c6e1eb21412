"""The autoscaler on a real Ray: simulated replicas, real requests. And very many replicas on one machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.deploy.cluster.conftest import ClusterFleet
from tests.helpers.processes import wait_until
from tests.helpers.ray_cluster import RayCluster, ray_cluster
from tests.helpers.steady_load import SteadyLoad

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(600)]

NODE = "127.0.0.63"  # of no other test: Ray's agents listen on fixed ports of it
MANY = 64
HOT = "the same long beginning of many prompts, " * 20


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A head and one node."""
    with ray_cluster(NODE) as cluster:
        yield cluster


def cached_tokens(replica_url: str, text: str) -> int:
    """How much of a prompt a replica had cached."""
    body = {"text": text, "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    answer = httpx.post(f"{replica_url}/generate", json=body, timeout=60, trust_env=False)
    assert answer.status_code == httpx.codes.OK, answer.text
    return int(answer.json()["meta_info"]["cached_tokens"])


def test_load_brings_warm_replicas_and_their_end_costs_no_request(cluster: RayCluster, tiny_chat_model: Path) -> None:
    fleet = ClusterFleet(
        cluster,
        tiny_chat_model,
        replicas={"min": 1, "max": 3},
        engine={"device": "sim", "sim-speed": 0.1},
        resources={"cpus": 1},
        autoscaling={"prefill_share": 0.3, "down_delay_s": 20},
    )
    fleet.apply()
    fleet.wait_ready(1)
    (first,) = fleet.records()
    for own in range(3):
        cached_tokens(first["url"], f"{HOT}{own}")
    with SteadyLoad(fleet.url, "tiny", 1.0) as trickle:
        with SteadyLoad(fleet.url, "tiny", 10.0) as burst:
            began_s = time.monotonic()
            fleet.wait_ready(3, timeout_s=200)
            up_s = time.monotonic() - began_s
            warm = [cached_tokens(record["url"], f"{HOT}x") for record in fleet.records()]
        began_s = time.monotonic()
        wait_until(lambda: len(fleet.records()) == 1, 200, "one replica is left")
        down_s = time.monotonic() - began_s
    outcomes = trickle.outcomes + burst.outcomes
    print(f"\n1 -> 3 after {up_s:.0f} s, 3 -> 1 after {down_s:.0f} s, {dict(outcomes)}, warm: {warm} tokens cached")
    assert set(outcomes) == {"answered"}, trickle.faults + burst.faults
    assert min(warm) > len(HOT) // 8


def memory_mib(processes: list[psutil.Process]) -> int:
    """Of all together; shared pages count once."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total // 2**20


def ready_now(fleet: ClusterFleet) -> int:
    """Replicas at the gateway, asked once a second: asking costs what the starting ones need."""
    time.sleep(1)
    return len(fleet.ready())


@pytest.mark.timeout(1200)
def test_many_replicas_register_serve_and_drain(cluster: RayCluster, tiny_chat_model: Path) -> None:
    fleet = ClusterFleet(
        cluster,
        tiny_chat_model,
        engine={"device": "sim", "sim-speed": 20},
        resources={"cpus": 0.1},
        start_timeout_s=900,
    )
    empty_mib = memory_mib(cluster.machines[NODE].processes())
    began_s = time.monotonic()
    fleet.apply("--no-wait", replicas=MANY)
    wait_until(lambda: ready_now(fleet) == MANY, 900, f"{MANY} replicas are ready at the gateway")
    ready_s = time.monotonic() - began_s
    each_mib = (memory_mib(cluster.machines[NODE].processes()) - empty_mib) / MANY
    with SteadyLoad(fleet.url, "tiny", 10.0) as load:
        wait_until(lambda: load.outcomes["answered"] >= 200, 120, "answers come")
        served = sum(worker["requests_sent"] > 0 for worker in fleet.workers())
        began_s = time.monotonic()
        assert cluster.canopy("scale", "1").returncode == 0
        wait_until(lambda: len(fleet.records()) == 1, 200, "all but one have drained")
        drained_s = time.monotonic() - began_s
    print(
        f"\n{MANY} replicas ready after {ready_s:.0f} s, {each_mib:.0f} MiB each; {served} of them served; drained to "
        f"one after {drained_s:.0f} s; {dict(load.outcomes)} {dict(load.faults)}"
    )
    assert set(load.outcomes) == {"answered"}, load.faults
    assert served == MANY
