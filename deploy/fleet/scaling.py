"""What decides how many replicas a model has, and which one leaves: the seam between controller and deploy/autoscale.

The controller asks the Autoscaler of each model with an `autoscaling` section on every tick (five times a second), and
acts on its answer within `replicas.min` and `replicas.max`. A model without one has the number it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from deploy.fleet.description import ModelDescription


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker last said of itself; it comes with every beat of its replica, every two seconds."""

    incarnation: str = ""
    running_requests: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0  # prompt tokens of waiting requests, cached or not
    used_tokens: int = 0
    evictable_tokens: int = 0  # that only the prefix cache holds
    max_total_tokens: int = 0  # KV pool
    max_running_requests: int = 0
    token_usage: float = 0.0  # share of the pool in use
    cache_hit_rate: float = 0.0
    # since the worker's start:
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0  # prompt tokens that the prefix cache held
    prefill_s_total: float = 0.0  # in which steps with prefill ran
    ttft_bounds_s: list[float] = []  # upper bounds of the counts below, rising; one more count has none
    ttft_counts: list[int] = []  # answers that began within each bound, cumulative


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a model as policies see it."""

    replica_id: str
    incarnation: str
    state: Literal["starting", "ready", "draining", "failed"]
    state_for_s: float
    url: str = ""  # http://host:port; empty unless ready or draining
    load: ReplicaLoad | None = None  # None before the first report
    load_age_s: float = 0.0  # since that report
    is_outdated: bool = False  # it has settings that a rolling update is replacing


class Autoscaler(Protocol):
    """The policy for one model. It may remember what it was asked; time comes as an argument."""

    def desired(self, replicas: Sequence[ReplicaView], current: int, now_s: float) -> int:
        """How many replicas the model should have, given that `current` are wanted now. Clamped by the caller."""
        ...

    def victim(self, replicas: Sequence[ReplicaView]) -> str:
        """The replica_id of the one to drain first. `replicas` is never empty, none of them is draining."""
        ...


class AutoscalerFactory(Protocol):
    """Makes the policy of a model; again whenever the model's description changes."""

    def __call__(self, model: ModelDescription) -> Autoscaler:
        """`model.autoscaling` is not None."""
        ...


class Warmer(Protocol):
    """Prepares a worker that serves but is not yet known to any gateway."""

    async def warm(self, url: str, model: ModelDescription, siblings: Sequence[ReplicaView]) -> None:
        """Send what will be asked for. `siblings` are the ready replicas of the model. The caller bounds the time, and
        takes the replica as it is whatever this raises."""
        ...


def least_loaded(replicas: Sequence[ReplicaView]) -> str:
    """Whom to drain where no policy chooses: one that serves nobody yet, else the one with the fewest requests."""

    def cost(replica: ReplicaView) -> tuple[bool, int, float]:
        load = replica.load or ReplicaLoad()
        return replica.state == "ready", load.running_requests + load.waiting_requests, replica.state_for_s

    return min(replicas, key=cost).replica_id
