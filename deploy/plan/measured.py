"""What the clients of one fleet saw over the counted part of a load, and the figures made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deploy.plan.fleet import Served

Floats = npt.NDArray[np.float64]
METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies in seconds, by metric; an answer of one token has no tpot. `faults`: why requests were refused, and how
    many for that reason. `span_s`: over which throughput counts."""

    latencies_s: dict[str, Floats]
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    span_s: float
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def num_refused(self) -> int:
        return sum(self.faults.values())

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached."""
        return self.cached_tokens / max(self.prompt_tokens, 1)

    @property
    def requests_per_s(self) -> float:
        return (self.num_requests - self.num_refused) / self.span_s

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.span_s

    def percentile_s(self, metric: str, percent: float) -> float:
        """0 if no request has the metric."""
        values = self.latencies_s[metric]
        return float(np.percentile(values, percent)) if len(values) else 0.0


def measured(served: Sequence[Served], span_s: float) -> Measured:
    """The figures of these requests."""
    answered = [one for one in served if not one.fault]
    latencies_s = {
        "ttft": _array(one.ttft_s for one in answered),
        "tpot": _array(one.tpot_s for one in answered if one.ask.output_tokens > 1),
        "e2e": _array(one.latency_s for one in answered),
    }
    faults: dict[str, int] = {}
    for one in served:
        if one.fault:
            faults[one.fault] = faults.get(one.fault, 0) + 1
    return Measured(
        latencies_s=latencies_s,
        num_requests=len(served),
        prompt_tokens=sum(one.ask.prompt_tokens for one in answered),
        cached_tokens=sum(one.cached_tokens for one in answered),
        output_tokens=sum(one.ask.output_tokens for one in answered),
        span_s=max(span_s, 1e-9),
        faults=faults,
    )


def _array(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)
