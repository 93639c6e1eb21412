"""Distributions of token counts, as short texts: 1000, 200-2000, p50=900,p90=2700."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import UserError

_FIXED = re.compile(r"(\d+)")
_RANGE = re.compile(r"(\d+)-(\d+)")
_QUANTILES = re.compile(r"p50=(\d+),p90=(\d+)")
_Z90 = 1.2815515655446004  # the standard normal's 90th percentile


@dataclass(frozen=True, slots=True)
class Lengths:
    """Uniform between `low` and `high`, both included; or, with `sigma`, log-normal around the median `low`, cut at
    `high`."""

    low: int
    high: int
    sigma: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """int64 [count], each at least 1."""
        if not self.sigma:
            return rng.integers(self.low, self.high + 1, count)
        drawn = self.low * np.exp(self.sigma * rng.standard_normal(count))
        lengths: npt.NDArray[np.int64] = np.clip(np.rint(drawn), 1, self.high).astype(np.int64)
        return lengths


def parse_lengths(text: str, *, flag: str) -> Lengths:
    """Read one of the three forms. Raises UserError."""
    if found := _FIXED.fullmatch(text):
        low = high = int(found[1])
        sigma = 0.0
    elif found := _RANGE.fullmatch(text):
        low, high, sigma = int(found[1]), int(found[2]), 0.0
    elif found := _QUANTILES.fullmatch(text):
        low, p90 = int(found[1]), int(found[2])
        sigma = math.log(p90 / low) / _Z90 if 0 < low < p90 else -1.0
        high = 20 * p90
    else:
        raise UserError(f"{flag} {text!r} is no length; write 1000, 200-2000 or p50=900,p90=2700.")
    if low < 1 or high < low or sigma < 0:
        raise UserError(f"{flag} {text!r}: lengths are at least 1, and the second number is the larger one.")
    return Lengths(low, high, sigma)
