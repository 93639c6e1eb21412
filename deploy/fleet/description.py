"""The fleet as its owner wants it: models, how many replicas of each, how they run, and the gateway in front of them.

`canopy serve --cluster FILE` reads it (deploy/fleet/description_file.py), the controller keeps it. Frozen; every value
in here has been checked, `engine` and `gateway` by the settings trees of worker and gateway.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all parts: immutable, unknown keys refused. `__post_init__` raises ValueError with half a sentence."""


class ReplicaBounds(Part, frozen=True):
    """How many replicas a model has: a fixed number where both are equal."""

    min: Annotated[int, Meta(ge=1, le=10_000)]
    max: Annotated[int, Meta(ge=1, le=10_000)]

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must be at most max ({self.max})")

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.min == self.max


class ResourcesDescription(Part, frozen=True):
    """What one replica reserves. None: derived, GPUs from tp-size and device, CPUs 1."""

    cpus: NotNegative | None = None  # cores, fractions allowed
    gpus: NotNegative | None = None  # a fraction up to 1 shares a GPU, above it must be whole

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus ({self.gpus:g}) must be whole above 1")


class PlacementDescription(Part, frozen=True):
    """On which nodes replicas run: spread or packed, and only where the labels of `ray start` fit."""

    strategy: Literal["spread", "pack"] = "spread"
    labels: dict[str, str] = {}


class AutoscalingDescription(Part, frozen=True):
    """When to have more or fewer replicas, between `replicas.min` and `replicas.max`. Meaning: deploy/autoscale."""

    prefill_share: Share = 0.65  # target: share of time in which a replica computes prompts
    token_usage: Share = 0.8  # target: share of its KV pool in use
    ttft_s: Positive | None = None  # target: time to first token; None: not looked at
    ttft_goal: Share = 0.95  # share of answers that should begin within ttft_s
    down_delay_s: NotNegative = 180.0  # load must be low this long before a replica is drained
    warm_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] = 32_768  # hottest prefixes a new replica computes first


class ModelDescription(Part, frozen=True):
    """One model and its replicas."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]  # clients use it
    model: Annotated[str, Meta(min_length=1)]  # a directory, a .gguf file, a hub id, or `demo`
    replicas: ReplicaBounds
    engine: dict[str, Any] = {}  # worker settings by field name
    resources: ResourcesDescription = ResourcesDescription()
    placement: PlacementDescription = PlacementDescription()
    autoscaling: AutoscalingDescription | None = None
    start_timeout_s: Positive = 600.0  # from its place on a node until ready
    drain_timeout_s: NotNegative = 60.0  # running requests have this long when a replica leaves

    def __post_init__(self) -> None:
        if self.autoscaling is not None and self.replicas.is_fixed:
            raise ValueError("autoscaling needs replicas with min below max")


class FleetDescription(Part, frozen=True):
    """The whole fleet. `gateway` holds gateway settings by field name."""

    models: Annotated[tuple[ModelDescription, ...], Meta(min_length=1)]
    gateway: dict[str, Any] = {}

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two models are called {double!r}")

    def model(self, name: str) -> ModelDescription | None:
        """The model of that name, if it is there."""
        return next((model for model in self.models if model.name == name), None)
