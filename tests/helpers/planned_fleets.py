"""Small virtual fleets for tests of deploy/plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.plan.fleet import FleetSpec
from deploy.plan.settings import model_of
from deploy.plan.workload import Ask
from gateway.config import GatewaySettings
from worker.config import WorkerSettings
from worker.engine.sim.profile import load_profile


def small_spec(*, policy: str = "cache_aware", context_len: int = 4096, speed: float = 1.0, **worker: Any) -> FleetSpec:
    """Llama 8B on an H200, with settings of the worker."""
    return FleetSpec(
        worker=WorkerSettings(model_path="test", device="sim", sim_speed=speed, **worker),
        gateway=GatewaySettings(policy=policy),
        config=model_of(context_len),
        profile=load_profile("h200-llama3-8b"),
    )


def ask(arrival_s: float, prompt: int, output: int, blocks: Sequence[int] = (), own_id: int = 0) -> Ask:
    """With blocks of 16 tokens."""
    return Ask(arrival_s, prompt, output, tuple(blocks), 16, own_id)
