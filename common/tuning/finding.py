"""What a rule says: a verdict, what it saw, what that means, and the flags to change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

MIN_SAMPLES = 10  # fewer say nothing about "often"
OFTEN = 0.5  # share of the samples


class Verdict(Enum):
    """HEALTHY: leave it. CHANGE: `flags` or the client should change. NOTE: worth knowing, nothing to change.
    UNKNOWN: something the rule needs was not seen."""

    HEALTHY = "healthy"
    CHANGE = "change"
    NOTE = "note"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's word on one replica. `rule`: its number in docs/tuning.md. `confidence`: 0 to 1."""

    rule: int
    verdict: Verdict
    saw: str
    means: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)  # flag -> new value
    confidence: float = 1.0


def share_confidence(share: float, samples: int, threshold: float = OFTEN) -> float:
    """How sure it is that the true share is on the same side of `threshold` as the seen one: normal approximation of
    the binomial distribution."""
    if samples <= 0:
        return 0.5
    return _normal(abs(share - threshold) / math.sqrt(threshold * (1 - threshold) / samples))


def rate_confidence(events: int, minutes: float, per_minute: float) -> float:
    """How sure it is that the true rate is on the same side of `per_minute` as the seen one: normal approximation of
    the Poisson distribution."""
    expected = max(per_minute * minutes, 1e-9)
    return _normal(abs(events - expected) / math.sqrt(max(expected, 1.0)))


def _normal(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
