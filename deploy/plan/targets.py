"""What a fleet must keep to: limits on percentiles of latencies, as short texts: ttft_p90=2s, tpot_p99=50ms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import UserError
from deploy.plan.measured import Measured

_FORM = re.compile(r"(ttft|tpot|e2e)_p(\d{1,2}(?:\.\d+)?)=(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Target:
    """`percentile` percent of the requests keep `metric` within `limit_s` seconds; a refused request keeps nothing."""

    metric: str
    percentile: float
    limit_s: float

    @property
    def name(self) -> str:
        """As users write it."""
        limit = f"{1000 * self.limit_s:g}ms" if self.limit_s < 1 else f"{self.limit_s:g}s"
        return f"{self.metric}_p{self.percentile:g}={limit}"

    def attainment(self, measured: Measured) -> float:
        """The share of requests that keep the limit."""
        values = measured.latencies_s[self.metric]
        total = len(values) + measured.num_refused
        return int(np.count_nonzero(values <= self.limit_s)) / total if total else 1.0

    def met(self, attainment: float) -> bool:
        """Whether that share is enough."""
        return attainment >= self.percentile / 100


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Read --slo. Raises UserError."""
    found = []
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            raise UserError(
                f"--slo {text!r} is no target; write METRIC_pPERCENT=LIMIT such as ttft_p90=2s, tpot_p99=50ms or "
                "e2e_p50=30s."
            )
        metric, percentile, limit, unit = match.groups()
        limit_s = float(limit) / (1000 if unit == "ms" else 1)
        if not limit_s or not float(percentile):
            raise UserError(f"--slo {text!r}: limit and percentile must be greater than 0.")
        found.append(Target(metric, float(percentile), limit_s))
    return tuple(found)
