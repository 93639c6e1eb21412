"""A replica's metrics, Canopy's names or SGLang's, and what was seen of it over a window that may slide."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from common.tuning.observation import Facts, Observation, Sample

_GIB = 2**30
_PREFIXES = ("sglang:", "canopy_")  # where both tell a name, the latter counts
_ONE = "the worker"
_UNKNOWN = Facts()
_LINE = re.compile(r"^(sglang:|canopy_)([a-zA-Z0-9_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_WORKER = re.compile(r'(?:^|,)worker="((?:[^"\\]|\\.)*)"')
_READ = frozenset(
    {
        "admitted_cached_tokens_total",
        "admitted_prompt_tokens_total",
        "cached_tokens_total",
        "info",
        "is_cuda_graph",
        "kv_pool_memory_bytes",
        "max_running_requests",
        "max_total_num_tokens",
        "num_aborted_requests_total",
        "num_queue_reqs",
        "num_retracted_input_tokens_total",
        "num_retracted_output_tokens_total",
        "num_retracted_reqs",
        "num_retracted_requests_total",
        "num_running_reqs",
        "prompt_tokens_total",
        "sampled_tokens_total",
        "schedule_conservativeness",
        "schedule_conservativeness_auto",
        "scheduler_steps_total",
        "startup_available_memory_bytes",
        "time_to_first_token_seconds_count",
        "time_to_first_token_seconds_sum",
        "token_usage",
        "weight_memory_bytes",
    }
)
RUNS_ON_CPU = "runs_on_cpu"  # of our own making: the free memory is not a GPU's

Series = Mapping[str, float]
"""Values of one replica by name, without prefix."""


def series_by_replica(text: str) -> dict[str, dict[str, float]]:
    """Of Prometheus text, the values of each replica (label `worker`) that are of interest here, by name without
    prefix, summed over other labels. Who tells no queue is no such replica."""
    found: defaultdict[str, dict[str, dict[str, float]]] = defaultdict(lambda: {prefix: {} for prefix in _PREFIXES})
    for prefix, name, labels, value in _LINE.findall(text):
        if name not in _READ:
            continue
        worker = _WORKER.search(labels)
        series = found[_unescaped(worker[1]) if worker else _ONE][prefix]
        series[name] = series.get(name, 0.0) + float(value)
        if name == "info" and 'device="cpu"' in labels:
            series[RUNS_ON_CPU] = 1.0
    joined = {replica: {**by["sglang:"], **by["canopy_"]} for replica, by in found.items()}
    return {replica: series for replica, series in joined.items() if "num_queue_reqs" in series}


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """What metrics tell of a startup line."""

    max_running_requests: int
    available_gb: float
    chunked_prefill_size: int | None = None
    device: str = "gpu"


@dataclass(frozen=True, slots=True)
class _Point:
    now_s: float
    sample: Sample | None
    retracted: float
    whole: float  # prompt tokens
    cached: float


class ReplicaWatch:
    """Takes one replica's series at one moment after another. With `window_s` it forgets what is older."""

    def __init__(self, replica: str, window_s: float | None = None) -> None:
        self._replica = replica
        self._window_s = window_s
        self._points: deque[_Point] = deque()
        self._last: Series = {}

    def take(self, now_s: float, series: Series) -> None:
        """The series at one moment. Where nothing runs or waits it is no sample, as idle replicas log nothing."""
        self._points.append(
            _Point(
                now_s=now_s,
                sample=_sample(series),
                retracted=series.get("num_retracted_requests_total", series.get("num_retracted_reqs", 0.0)),
                whole=series.get("admitted_prompt_tokens_total", series.get("prompt_tokens_total", 0.0)),
                cached=series.get("admitted_cached_tokens_total", series.get("cached_tokens_total", 0.0)),
            )
        )
        self._last = series
        while self._window_s is not None and self._points[0].now_s < now_s - self._window_s:
            self._points.popleft()

    def observation(self, facts: Facts) -> Observation:
        """What is in the window, of at least one moment; `facts` count before what the series say."""
        first, last = self._points[0], self._points[-1]
        cached, whole = last.cached - first.cached, last.whole - first.whole
        return Observation(
            replica=self._replica,
            minutes=(last.now_s - first.now_s) / 60 or None,
            samples=[point.sample for point in self._points if point.sample is not None],
            retractions=sum(later.retracted > before.retracted for before, later in pairwise(self._points)),
            new_tokens=int(whole - cached),
            cached_tokens=int(cached),
            startup=_startup(self._last),
            facts=merged(_facts(self._last), facts),
        )


def merged(first: Facts, second: Facts) -> Facts:
    """`second` where it knows, else `first`."""
    names = Facts.__dataclass_fields__
    known = {name: value for name in names if (value := getattr(second, name)) != getattr(_UNKNOWN, name)}
    return replace(first, **known)


def _sample(series: Series) -> Sample | None:
    running, queued = int(series.get("num_running_reqs", 0)), int(series.get("num_queue_reqs", 0))
    if not running and not queued:
        return None
    graph = series.get("is_cuda_graph")
    return Sample(running, queued, series.get("token_usage", 0.0), None if graph is None else graph > 0)


def _startup(series: Series) -> StartupFacts | None:
    free = series.get("startup_available_memory_bytes")
    if free is None or RUNS_ON_CPU in series:
        return None
    return StartupFacts(int(series.get("max_running_requests", 0)), free / _GIB)


def _facts(series: Series) -> Facts:
    weights, rows = series.get("weight_memory_bytes"), series.get("max_running_requests")
    return Facts(
        weights_gb=None if weights is None else weights / _GIB,
        max_running_requests=None if rows is None else int(rows),
        schedule_conservativeness=series.get("schedule_conservativeness"),
        conservativeness_auto=series.get("schedule_conservativeness_auto", 0.0) > 0,
        is_canopy="scheduler_steps_total" in series,
    )


def _unescaped(text: str) -> str:
    return text.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")
