"""What a running fleet refuses: one sentence, exit code 2, and nothing has changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.deploy.cluster.conftest import ClusterFleet
from tests.helpers.ray_cluster import HEAD_ADDRESS, RayCluster, ray_cluster

pytestmark = [pytest.mark.ray_cluster, pytest.mark.timeout(900)]

_OTHER_RAY = """
import ray, sys
ray.__version__ = "2.59.0"
from deploy import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def tiny(sim_model: Path) -> Iterator[ClusterFleet]:
    """One replica on one node, which says that it has two GPUs."""
    with ray_cluster(head_cpus=8, head_gpus=2) as cluster:
        fleet = ClusterFleet(cluster, sim_model, replicas=1)
        fleet.apply()
        fleet.wait_ready(1)
        yield fleet


def refusal(cluster: RayCluster, description: dict[str, Any]) -> str:
    done = cluster.apply(description)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def test_bad_input_is_refused_and_the_fleet_is_as_it_was(tiny: ClusterFleet) -> None:
    before = tiny.records()
    here = f"canopy: Node {HEAD_ADDRESS}: "
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        elsewhere = {"host": "127.0.0.1", "port": port}
        cases = [
            (tiny.description(replcas=2), "model tiny has the unknown key 'replcas'; did you mean replicas?"),
            (
                tiny.description(engine={"device": "cuda"}, replicas=3),
                "canopy: The fleet needs 3 GPUs (tiny 3), the cluster has 2: 1 missing; add nodes or lower replicas.",
            ),
            (tiny.description(engine={"tp-size": 2}), "--tp-size 2 is not built yet: a replica uses one GPU"),
            (
                tiny.description(replicas=99),
                "canopy: The fleet needs 99 CPUs (tiny 99), the cluster has 8: 91 missing; add ",
            ),
            (tiny.description(model="/no/such/model"), f"{here}There is no model at /no/such/model"),
            (
                {**tiny.description(), "gateway": elsewhere},
                f"canopy: gateway: Cannot listen on 127.0.0.1:{port}: address already in use",
            ),
        ]
        for description, sentence in cases:
            assert sentence in refusal(tiny.cluster, description)
    assert tiny.records() == before
    assert tiny.ready() == {record["incarnation"] for record in before}
    assert tiny.apply().count("keep 1 replica") == 1


def test_a_stranger_without_the_token_is_turned_away(tiny: ClusterFleet, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    cluster = tiny.cluster
    kept = cluster.env["RAY_AUTH_TOKEN_PATH"]
    cluster.env["RAY_AUTH_TOKEN_PATH"] = str(wrong)
    try:
        sentence = refusal(cluster, tiny.description())
    finally:
        cluster.env["RAY_AUTH_TOKEN_PATH"] = kept
    print(f"\n{sentence}")
    assert sentence.startswith(f"canopy: Cannot ask the Ray at {cluster.address}: ")
    assert "oken" in sentence


def test_another_ray_is_named(tiny: ClusterFleet) -> None:
    path = tiny.cluster.write_fleet(tiny.description())
    done = tiny.cluster.python("-c", _OTHER_RAY, "serve", "--cluster", path)
    assert done.returncode == 2, done.stderr
    assert "and this is 2.59.0 on Python" in done.stderr
    assert done.stderr.count("\n") == 1


def test_several_gpus_of_a_replica_are_reserved_together(tiny: ClusterFleet) -> None:
    tiny.apply(resources={"cpus": 1, "gpus": 2})
    (record,) = tiny.records()
    assert psutil.Process(record["pid"]).environ()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert tiny.cluster.canopy("scale", "2").stderr == (
        "canopy: The fleet needs 4 GPUs (tiny 4), the cluster has 2: 2 missing; add nodes or lower replicas.\n"
    )
    psutil.Process(record["pid"]).kill()
    tiny.wait_ready(1, without={record["incarnation"]})  # the next life gets them, so they were given back
    tiny.apply()
    assert "CUDA_VISIBLE_DEVICES" not in psutil.Process(tiny.records()[0]["pid"]).environ()
