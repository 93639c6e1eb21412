"""Clusters of several Ray nodes on this machine, with fleets of simulated replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.process import free_port
from tests.helpers.processes import wait_until
from tests.helpers.ray_cluster import RayCluster, ray_cluster
from tests.helpers.steady_load import SteadyLoad

RATE = 5.0
RECOVERY_LIMIT_S = 120.0


class ClusterFleet:
    """A fleet of one simulated model, called tiny, on a cluster."""

    def __init__(self, cluster: RayCluster, model: Path, **model_parts: Any) -> None:
        self.cluster = cluster
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        self.model = {
            "name": "tiny",
            "model": str(model),
            "replicas": 2,
            "engine": {"device": "sim", "sim-speed": 20},
            "drain_timeout_s": 20,
            **model_parts,
        }

    def description(self, **model_parts: Any) -> dict[str, Any]:
        """The fleet file's content, with other values for its model."""
        return {"models": [{**self.model, **model_parts}], "gateway": dict(self.gateway)}

    def apply(self, *flags: str, **model_parts: Any) -> str:
        """Apply the description, and wait for it. Returns what was printed."""
        done = self.cluster.apply(self.description(**model_parts), *flags)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def records(self) -> list[dict[str, Any]]:
        """The replicas as the controller knows them."""
        return [replica["status"]["record"] for replica in self.cluster.status()["replicas"]]

    def workers(self) -> list[dict[str, Any]]:
        """What the gateway knows; nothing while it is away."""
        try:
            return list(httpx.get(f"{self.url}/workers", timeout=5, trust_env=False).json()["workers"])
        except httpx.HTTPError:
            return []

    def ready(self) -> set[str]:
        """Incarnations that the gateway sends requests to."""
        return {worker["incarnation"] for worker in self.workers() if worker["state"] == "ready"}

    def wait_ready(self, count: int, without: set[str] | None = None, timeout_s: float = 120) -> None:
        """Until the gateway sends requests to `count` replicas, none of them in `without`."""
        wait_until(lambda: len(self.ready() - (without or set())) == count, timeout_s, f"{count} replicas ready")


@contextmanager
def ready_fleet(model: Path, replicas: int) -> Iterator[ClusterFleet]:
    """A fleet on one node with room for eight, all its replicas ready at the gateway."""
    with ray_cluster(head_cpus=8) as cluster:
        fleet = ClusterFleet(cluster, model, replicas=replicas)
        fleet.apply()
        fleet.wait_ready(replicas)
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


@pytest.fixture(scope="session")
def sim_model(tiny_chat_model: Path) -> Path:
    """A model directory: simulated replicas take vocabulary and context from it."""
    return tiny_chat_model
