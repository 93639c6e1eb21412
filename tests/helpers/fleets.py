"""Descriptions and specs of fleets for tests, with as little in them as possible."""

from __future__ import annotations

from typing import Any

from deploy.fleet.description import FleetDescription, ModelDescription, ReplicaBounds
from deploy.fleet.messages import Ready, ReplicaSpec
from deploy.fleet.specs import Surroundings, specs_of

AROUND = Surroundings(command=["worker"], log_dir="/logs")


def model(name: str = "m", replicas: int = 2, most: int | None = None, **parts: Any) -> ModelDescription:
    """A model with a fixed number of replicas, or from `replicas` to `most`."""
    bounds = ReplicaBounds(min=replicas, max=most or replicas)
    return ModelDescription(name=name, model=f"/models/{name}", replicas=bounds, **parts)


def fleet(*models: ModelDescription, **gateway: Any) -> FleetDescription:
    """Of these models, or of one."""
    return FleetDescription(models=models or (model(),), gateway=gateway)


def specs(description: FleetDescription, *, has_gpus: bool = False) -> dict[str, ReplicaSpec]:
    """By model name."""
    return specs_of(description, AROUND, has_gpus=has_gpus)


def ready(name: str = "m", url: str = "http://127.0.0.1:1") -> Ready:
    """What a worker says when it serves."""
    return Ready(url=url, pid=1, scheduler_pid=2, model=name, max_total_num_tokens=10, max_running_requests=1)
