"""What experiments need of a fleet: the seam between the loop and where it is tried, a live fleet or virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.tuning.observation import Observation
from deploy.tune.trials.bounds import Change, Value


class CanaryFailed(Exception):
    """The canary does not start, or has ended: one sentence."""


class LaboratoryLost(Exception):
    """The fleet changed under the experiment, or cannot be asked any more: one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One replica over one window. `tokens`: prompt tokens of admitted requests and tokens sampled, the work done."""

    seconds: float
    tokens: float
    running: float  # requests, mean
    queue_share: float  # of the samples, with requests waiting
    recomputed_tokens: float = 0.0  # of requests that were retracted
    retractions: float = 0.0
    first_tokens: float = 0.0  # answers that began
    ttft_sum_s: float = 0.0  # of those
    failures: float = 0.0  # requests that ended before their answer did


@dataclass(frozen=True, slots=True)
class Window:
    """The same stretch of time at the canary and at each other replica of the model."""

    canary: Stretch
    others: Sequence[Stretch]


@dataclass(frozen=True, slots=True)
class Situation:
    """The fleet as it is. `settings`: values in effect of the flags in bounds.py, those that are known. `memory_gb`: of
    one GPU, None if there is none or it is not known."""

    settings: Mapping[str, Value]
    seen: Sequence[Observation]
    memory_gb: float | None = None


class Laboratory(Protocol):
    """A model's replicas under traffic that is not ours. One canary at a time. Methods block; all raise
    LaboratoryLost."""

    def look(self) -> Situation:
        """Watch the replicas for a while."""
        ...

    def begin(self, change: Change) -> None:
        """Start the canary: a replica like the others with `change`. Returns when it serves. Raises CanaryFailed."""
        ...

    def window(self) -> Window:
        """Let one window pass. Raises CanaryFailed if the canary ends in it."""
        ...

    def keep(self) -> None:
        """Give all replicas the canary's settings, one at a time. Returns when they have them. Raises CanaryFailed if
        they could not be had; the fleet is as it was then."""
        ...

    def drop(self) -> None:
        """Let the canary finish its requests and leave. Nothing to do if there is none."""
        ...
