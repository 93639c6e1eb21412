"""Figures of a run under the keys that the field's serving benchmarks use. Failed requests are left out of all but
`failed`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.serve.load import Run
from benchmarks.serve.outcomes import Outcome

METRICS = ("e2e_latency", "ttft", "tpot", "itl")
DEFINITIONS = {
    "ttft": "sending a request to its first event with a token; without streaming, to the whole answer",
    "tpot": "(latency - TTFT) / (output tokens - 1), of each request; AIPerf and GuideLLM call this ITL",
    "itl": "gaps between stream events with tokens, of all requests together; tokens that share an event have no gap",
    "e2e_latency": "sending a request to the end of its answer",
    "goodput": "requests a second that kept all limits; of their ITLs the mean counts",
    "concurrency": "sum of latencies / duration",
}
PERCENTILES = (90, 95, 99)
QUANTILES = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 92.5, 95, 97.5, 99, 99.5, 99.9, 100)
_OF_ANSWERS = (  # figures that only generated tokens have
    *("total_output_tokens", "total_output_tokens_retokenized", "num_retractions", "output_throughput"),
    *("max_output_tokens_per_s", "accept_length"),
)
_BINS = 120
_BARELY_LATE_S = 0.05

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Goal:
    """A request is good if each named latency is at most its limit in ms: names as in METRICS."""

    limits_ms: Mapping[str, float]

    def met(self, outcome: Outcome) -> bool:
        """Whether a successful request kept to all limits; for ITL its mean counts."""
        found = _latencies_ms([outcome])
        return all(float(np.mean(found[name])) <= limit for name, limit in self.limits_ms.items() if len(found[name]))


def summary(
    run: Run,
    goal: Goal | None = None,
    retokenized: Callable[[str], int] | None = None,
    *,
    generates: bool = True,
) -> dict[str, Any]:
    """The figures of one run. `retokenized` counts the tokens of an answer's text anew. Embeddings (not `generates`)
    have no figures of output tokens, and of latencies only the end-to-end one."""
    good, duration_s = [outcome for outcome in run.outcomes if outcome.success], run.duration_s
    inputs, outputs = sum(o.input_tokens for o in good), sum(o.output_tokens for o in good)
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(run.outcomes) - len(good),
        "skipped": run.skipped,
        "total_input_tokens": inputs,
        "total_input_text_tokens": inputs,
        "total_output_tokens": outputs,
        "total_output_tokens_retokenized": sum(retokenized(o.text) for o in good) if retokenized else None,
        "total_cached_tokens": sum(o.cached_tokens for o in good),
        "cache_hit_rate": sum(o.cached_tokens for o in good) / max(inputs, 1),
        "num_retractions": sum(o.retractions for o in good),
        "request_throughput": len(good) / duration_s,
        "input_throughput": inputs / duration_s,
        "output_throughput": outputs / duration_s,
        "total_throughput": (inputs + outputs) / duration_s,
        "concurrency": sum(o.latency_s for o in good) / duration_s,
        "max_concurrent_requests": _most_at_once(good),
        "max_output_tokens_per_s": _most_tokens(good),
        "accept_length": None,
    }
    latencies, timeline = _latencies_ms(good), _timeline(run, good)
    if not generates:
        figures = {name: value for name, value in figures.items() if name not in _OF_ANSWERS}
        latencies = {"e2e_latency": latencies["e2e_latency"]}
        timeline = {name: timeline[name] for name in ("step_s", "in_flight", "input_throughput")}
    for name, values in latencies.items():
        figures |= _distribution(name, values)
    if goal is not None:
        met = sum(goal.met(outcome) for outcome in good)
        figures |= {"goodput": dict(goal.limits_ms), "request_goodput": met / duration_s}
        figures["goodput_share"] = met / max(1, len(run.outcomes))
    figures |= _own(run, good)
    figures["quantiles"] = {name: _quantiles(values) for name, values in latencies.items()}
    figures["timeline"] = timeline
    return figures


def details(run: Run) -> dict[str, list[Any]]:
    """Each request's own figures, in order of their ends; times in seconds."""
    return {
        "input_lens": [o.input_tokens for o in run.outcomes],
        "output_lens": [o.output_tokens for o in run.outcomes],
        "ttfts": [o.ttft_s for o in run.outcomes],
        "itls": [o.itls_s for o in run.outcomes],
        "latencies": [o.latency_s for o in run.outcomes],
        "start_times": [o.begin_s - run.begin_s for o in run.outcomes],
        "generated_texts": [o.text for o in run.outcomes],
        "errors": [o.error for o in run.outcomes],
    }


def notes(run: Run, *, paced: bool, max_concurrency: int | None) -> list[str]:
    """What a reader of the figures must know, a sentence each. `paced`: requests had times to come at."""
    good = [outcome for outcome in run.outcomes if outcome.success]
    found = [run.own_cost.complaint(float(np.median([o.ttft_s for o in good])) if good else 0.0)]
    late = sum(o.delay_s > _BARELY_LATE_S for o in run.outcomes) / max(1, len(run.outcomes))
    if paced and max_concurrency is not None and late > 0.01:
        found.append(
            f"{late:.0%} of the requests waited for room within --max-concurrency {max_concurrency}: the server saw "
            "less than the rate asked for, and no latency contains that wait."
        )
    if run.skipped:
        found.append(f"{run.skipped} turns of conversations were not sent, because an earlier turn failed.")
    return [sentence for sentence in found if sentence]


def _own(run: Run, good: Sequence[Outcome]) -> dict[str, float]:
    delays_ms = [1000 * o.delay_s for o in good] or [0.0]
    return {
        "mean_send_delay_ms": float(np.mean(delays_ms)),
        "p99_send_delay_ms": float(np.percentile(delays_ms, 99)),
        "client_cpu_share": run.own_cost.cpu_share,
        "client_cpu_us_per_request": 1e6 * run.own_cost.cpu_s / max(1, len(run.outcomes)),
        "client_lag_p99_ms": 1000 * run.own_cost.lag_p99_s,
    }


def _latencies_ms(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    return {
        "e2e_latency": [1000 * o.latency_s for o in outcomes],
        "ttft": [1000 * o.ttft_s for o in outcomes],
        "tpot": [1000 * o.tpot_s for o in outcomes if o.tpot_s is not None],
        "itl": [1000 * gap for o in outcomes for gap in o.itls_s],
    }


def _distribution(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """None for each part where nothing was streamed."""
    if not len(values) and name in ("tpot", "itl"):
        return {f"{part}_{name}_ms": None for part in ("mean", "median", "std", "max", *(f"p{p}" for p in PERCENTILES))}
    found = np.asarray(values if len(values) else [0.0])
    parts = {"mean": found.mean(), "median": np.median(found), "std": found.std(), "max": found.max()}
    parts |= {f"p{p}": np.percentile(found, p) for p in PERCENTILES}
    return {f"{part}_{name}_ms": float(value) for part, value in parts.items()}


def _quantiles(values: Sequence[float]) -> list[float]:
    """At QUANTILES, in ms; [] of nothing."""
    return [round(float(value), 3) for value in np.percentile(values, QUANTILES)] if len(values) else []


def _most_at_once(outcomes: Sequence[Outcome]) -> int:
    changes = [(o.begin_s, 1) for o in outcomes] + [(o.begin_s + o.latency_s, -1) for o in outcomes]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _token_times(outcomes: Sequence[Outcome]) -> tuple[Floats, Floats]:
    """When tokens came, and how many at once: those of an answer are spread evenly over its events."""
    times, counts = [np.zeros(0)], [np.zeros(0)]
    for o in outcomes:
        times.append(o.begin_s + o.ttft_s + np.concatenate([[0.0], np.cumsum(o.itls_s)]))
        counts.append(np.full(len(o.itls_s) + 1, o.output_tokens / (len(o.itls_s) + 1)))
    return np.concatenate(times), np.concatenate(counts)


def _most_tokens(outcomes: Sequence[Outcome]) -> float:
    """Output tokens of the best second, counted from the first token."""
    times, counts = _token_times(outcomes)
    if not len(times):
        return 0.0
    return float(np.bincount((times - times.min()).astype(int), counts).max())


def _timeline(run: Run, good: Sequence[Outcome]) -> dict[str, Any]:
    """The run in at most 120 equal steps of `step_s`: output tokens a second, tokens a second of the prompts that were
    answered, requests in flight at each step's middle, mean TTFT in ms of the requests that began in it (None: none
    did)."""
    bins = int(min(_BINS, max(10, run.duration_s)))
    step_s = run.duration_s / bins
    times, counts = _token_times(good)
    begins = np.asarray([o.begin_s - run.begin_s for o in good])
    ends = begins + np.asarray([o.latency_s for o in good])
    ttfts_ms = np.asarray([1000 * o.ttft_s for o in good])
    inputs = np.asarray([float(o.input_tokens) for o in good])

    def binned(at_s: Floats, weights: Floats) -> Floats:
        places = np.clip((at_s / step_s).astype(int), 0, bins - 1)
        return np.bincount(places, weights, minlength=bins).astype(float)

    middles = (np.arange(bins) + 0.5) * step_s
    in_flight = np.searchsorted(np.sort(begins), middles, "right") - np.searchsorted(np.sort(ends), middles, "right")
    started, sums = binned(begins, np.ones(len(begins))), binned(begins, ttfts_ms)
    return {
        "step_s": step_s,
        "output_throughput": [round(float(rate), 1) for rate in binned(times - run.begin_s, counts) / step_s],
        "input_throughput": [round(float(rate), 1) for rate in binned(ends, inputs) / step_s],
        "in_flight": [int(count) for count in in_flight],
        "ttft_ms": [round(float(s / n), 2) if n else None for s, n in zip(sums, started, strict=True)],
    }
