"""A fleet on two Ray nodes, light enough for every run: applied, applied again, scaled. Workers are stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.process import free_port
from tests.helpers.ray_cluster import HEAD_ADDRESS, RayCluster, ray_cluster

pytestmark = pytest.mark.ray

NODE = "127.0.0.3"

# `canopy serve --cluster` with the stand-in worker in place of `python -m worker`
_APPLY = """
import os, sys
from deploy.fleet.apply import main
sys.exit(main(sys.argv[1:], os.environ, worker_command=[sys.executable, "-m", "tests.helpers.stand_in_worker"]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(NODE, head_cpus=4) as cluster:
        yield cluster


def test_a_fleet_spreads_over_nodes_and_changes_only_what_differs(cluster: RayCluster, tiny_chat_model: Path) -> None:
    model = {"name": "serve", "model": str(tiny_chat_model), "replicas": 2, "engine": {"device": "cpu"}}
    gateway = {"host": "127.0.0.1", "port": free_port()}

    def apply(**changes: object) -> str:
        path = cluster.write_fleet({"models": [{**model, **changes}], "gateway": gateway})
        done = cluster.python("-c", _APPLY, "--cluster", path, "--no-wait")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "serve: start 2 replicas" in apply()
    done = cluster.canopy("scale", "serve", "2")  # waits until they are there
    assert done.returncode == 0, done.stderr
    before = records(cluster)
    assert sorted(record["node"] for record in before) == [HEAD_ADDRESS, NODE]
    assert "serve: keep 2 replicas" in apply()
    assert records(cluster) == before


def records(cluster: RayCluster) -> list[dict[str, Any]]:
    return [replica["status"]["record"] for replica in cluster.status()["replicas"]]
