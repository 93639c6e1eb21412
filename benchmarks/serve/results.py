"""Figures of a run under the keys that the field's serving benchmarks use, and their table.

TTFT: sending the request to the first event with a token. TPOT: (latency - TTFT) / (output tokens - 1), a request. ITL:
gaps between stream events. Concurrency: sum of latencies / duration. Failed requests are left out of all but `failed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.serve.client import Outcome

_PERCENTILES = (90, 95, 99)
_TITLES = {
    "e2e_latency": "End-to-End Latency",
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st)",
    "itl": "Inter-Token Latency",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A request is good if each named latency is at most its limit in ms: names as in `_TITLES`."""

    limits_ms: dict[str, float]

    def met(self, outcome: Outcome) -> bool:
        """Whether a successful request kept to all limits; for ITL its mean counts."""
        found = _latencies_ms([outcome])
        return all(float(np.mean(found[name])) <= limit for name, limit in self.limits_ms.items() if len(found[name]))


def summary(outcomes: Sequence[Outcome], duration_s: float, goal: Goal | None = None) -> dict[str, Any]:
    """The figures of one run of `duration_s` seconds."""
    good = [outcome for outcome in outcomes if outcome.success]
    inputs, outputs = sum(o.input_tokens for o in good), sum(o.output_tokens for o in good)
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_cached_tokens": sum(o.cached_tokens for o in good),
        "cache_hit_rate": sum(o.cached_tokens for o in good) / max(inputs, 1),
        "num_retractions": sum(o.retractions for o in good),
        "request_throughput": len(good) / duration_s,
        "input_throughput": inputs / duration_s,
        "output_throughput": outputs / duration_s,
        "total_throughput": (inputs + outputs) / duration_s,
        "concurrency": sum(o.latency_s for o in good) / duration_s,
        "max_concurrent_requests": _most_at_once(good),
    }
    for name, values in _latencies_ms(good).items():
        figures |= _distribution(name, values)
    if goal is not None:
        figures["request_goodput"] = sum(goal.met(outcome) for outcome in good) / duration_s
    return figures


def table(figures: dict[str, Any]) -> str:
    """The block that is printed."""
    lines = [f"{' Serving Benchmark Result ':=^58}"]
    for key, title, form in _ROWS:
        if figures.get(key) is not None:
            lines.append(f"{title + ':':<44}{format(figures[key], form):>14}")
    for name, title in _TITLES.items():
        lines.append(f"{title:-^58}")
        for part in ("mean", "median", *(f"p{p}" for p in _PERCENTILES)):
            label = f"{part.capitalize()} {name.upper()} (ms):"
            lines.append(f"{label:<44}{figures[f'{part}_{name}_ms']:>14.2f}")
    return "\n".join([*lines, "=" * 58])


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("backend", "Backend", ""),
    ("request_rate", "Traffic request rate", ""),
    ("max_concurrency", "Max request concurrency", ""),
    ("completed", "Successful requests", "d"),
    ("failed", "Failed requests", "d"),
    ("duration", "Benchmark duration (s)", ".2f"),
    ("total_input_tokens", "Total input tokens", "d"),
    ("total_cached_tokens", "Of these from a prefix cache", "d"),
    ("total_output_tokens", "Total generated tokens", "d"),
    ("request_throughput", "Request throughput (req/s)", ".2f"),
    ("request_goodput", "Request goodput (req/s)", ".2f"),
    ("input_throughput", "Input token throughput (tok/s)", ".2f"),
    ("output_throughput", "Output token throughput (tok/s)", ".2f"),
    ("total_throughput", "Total token throughput (tok/s)", ".2f"),
    ("concurrency", "Concurrency", ".2f"),
    ("max_concurrent_requests", "Peak concurrent requests", "d"),
)


def _latencies_ms(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    return {
        "e2e_latency": [1000 * o.latency_s for o in outcomes],
        "ttft": [1000 * o.ttft_s for o in outcomes],
        "tpot": [1000 * (o.latency_s - o.ttft_s) / (o.output_tokens - 1) for o in outcomes if o.output_tokens > 1],
        "itl": [1000 * gap for o in outcomes for gap in o.itls_s],
    }


def _distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    found = np.asarray(values if len(values) else [0.0])
    parts = {"mean": found.mean(), "median": np.median(found), "std": found.std(), "max": found.max()}
    parts |= {f"p{p}": np.percentile(found, p) for p in _PERCENTILES}
    return {f"{part}_{name}_ms": float(value) for part, value in parts.items()}


def _most_at_once(outcomes: Sequence[Outcome]) -> int:
    changes = [(o.begin_s, 1) for o in outcomes] + [(o.begin_s + o.latency_s, -1) for o in outcomes]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
