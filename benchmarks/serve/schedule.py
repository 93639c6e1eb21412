"""When sessions begin. Pure: a random generator and numbers go in, seconds since the start come out, in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class RampStrategy(Enum):
    """How the rate grows during a run."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Ramp:
    """From one rate to another, in sessions a second; both above 0."""

    strategy: RampStrategy
    start_per_s: float
    end_per_s: float

    def duration_s(self, count: float) -> float:
        """How long it takes until `count` sessions are expected."""
        start, end = self.start_per_s, self.end_per_s
        if self.strategy is RampStrategy.LINEAR or start == end:
            return 2 * count / (start + end)
        return count * math.log(end / start) / (end - start)

    def when(self, counts: Times, total: float) -> Times:
        """When so many sessions are expected to have begun, if the end's rate is reached at `total`: the inverse of the
        integral of the rate."""
        start, end = self.start_per_s, self.end_per_s
        if start == end:
            return counts / start
        last_s = self.duration_s(total)
        if self.strategy is RampStrategy.LINEAR:
            growth = (end - start) / last_s
            return (np.sqrt(np.maximum(start**2 + 2 * growth * counts, 0.0)) - start) / growth
        growth = math.log(end / start) / last_s
        return np.log1p(np.maximum(growth * counts / start, -1 + 1e-12)) / growth


def all_at_once(count: int) -> Times:
    """A closed loop, or everything there is: only the number in flight holds sessions back."""
    return np.zeros(count)


def at_rate(rng: np.random.Generator, count: int, rate_per_s: float, burstiness: float) -> Times:
    """Gaps are gamma distributed with shape `burstiness`: 1 makes a Poisson process, less bursts, more evenness."""
    return _expected_counts(rng, count, burstiness) / rate_per_s


def ramped(rng: np.random.Generator, count: int, ramp: Ramp, burstiness: float) -> Times:
    """The same, at a rate that changes: it is the ramp's start for the first session, and its end for the last."""
    counts = _expected_counts(rng, count, burstiness)
    return ramp.when(counts, max(float(counts[-1]), 1e-9)) if count > 1 else np.zeros(count)


def _expected_counts(rng: np.random.Generator, count: int, burstiness: float) -> Times:
    """Arrivals of a process of rate 1; the first one is at 0."""
    gaps = rng.gamma(burstiness, 1 / burstiness, count)
    found: Times = np.cumsum(gaps) - gaps[:1].sum()
    return found
