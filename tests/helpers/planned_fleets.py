"""Small virtual fleets for tests of deploy/plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.plan.fleet import FleetSpec
from deploy.plan.workload import Ask
from gateway.config import GatewaySettings
from worker.config import WorkerSettings
from worker.engine.sim.profile import load_profile
from worker.models.config import ModelConfig


def small_spec(*, policy: str = "cache_aware", context_len: int = 4096, speed: float = 1.0, **worker: Any) -> FleetSpec:
    """Llama 8B on an H200, with settings of the worker."""
    config = ModelConfig(
        architecture="test",
        vocab_size=1,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        context_len=context_len,
        eos_token_ids=(),
        dtype="bfloat16",
    )
    return FleetSpec(
        worker=WorkerSettings(model_path="test", device="sim", sim_speed=speed, **worker),
        gateway=GatewaySettings(policy=policy),
        config=config,
        profile=load_profile("h200-llama3-8b"),
    )


def ask(arrival_s: float, prompt: int, output: int, blocks: Sequence[int] = (), own_id: int = 0) -> Ask:
    """With blocks of 16 tokens."""
    return Ask(arrival_s, prompt, output, tuple(blocks), 16, own_id)
