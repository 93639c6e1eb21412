"""Reads observations from metrics: of a gateway's replicas (/engine_metrics) or of one worker (/metrics), Canopy's
names or SGLang's, once a second."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from common.errors import UserError
from common.tuning.observation import Facts, Observation, Sample
from deploy.tune.logs import merged
from worker.log_lines import StartupLine

_ASK_TIMEOUT_S = 10.0
_GIB = 2**30
_PREFIXES = ("canopy_", "sglang:")
_ONE = "the worker"
RUNS_ON_CPU = "runs_on_cpu"  # of our own making: the free memory is not a GPU's

Series = Mapping[str, float]
"""Values of one replica by name, without prefix."""


class ReplicaWatch:
    """Takes one replica's series at one moment after another."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._samples: list[Sample] = []
        self._retractions = 0
        self._first: tuple[float, Series] | None = None
        self._last: tuple[float, Series] | None = None

    def take(self, now_s: float, series: Series) -> None:
        """The series at one moment. Where nothing runs or waits it is no sample, as idle replicas log nothing."""
        if self._last is not None and _retracted(series) > _retracted(self._last[1]):
            self._retractions += 1
        running, queued = int(series.get("num_running_reqs", 0)), int(series.get("num_queue_reqs", 0))
        if running or queued:
            graph = series.get("is_cuda_graph")
            usage = series.get("token_usage", 0.0)
            self._samples.append(Sample(running, queued, usage, None if graph is None else graph > 0))
        self._first = self._first or (now_s, series)
        self._last = (now_s, series)

    def observation(self, facts: Facts) -> Observation:
        """Everything so far."""
        assert self._first is not None and self._last is not None
        (begin_s, first), (end_s, last) = self._first, self._last

        def grown(*names: str) -> int:
            return int(sum(last.get(name, 0.0) - first.get(name, 0.0) for name in names))

        cached = grown("admitted_cached_tokens_total", "cached_tokens_total")
        whole = grown("admitted_prompt_tokens_total", "prompt_tokens_total")
        return Observation(
            replica=self._replica,
            minutes=(end_s - begin_s) / 60 or None,
            samples=self._samples,
            retractions=self._retractions,
            new_tokens=whole - cached,
            cached_tokens=cached,
            startup=_startup(last),
            facts=merged(_facts(last), facts),
        )


def watch(
    url: str, headers: Mapping[str, str], facts: Facts, *, seconds: float, tick: Callable[[float], None]
) -> list[Observation]:
    """Watch for `seconds`; `tick` hears how many have passed. Raises UserError if there are no metrics."""
    watches: dict[str, ReplicaWatch] = {}
    with httpx.Client(timeout=_ASK_TIMEOUT_S, trust_env=False, headers=dict(headers)) as client:
        path = _path(client, url)
        begin_s = time.monotonic()
        while (passed_s := time.monotonic() - begin_s) < seconds:
            for replica, series in series_by_replica(_get(client, url + path)).items():
                watches.setdefault(replica, ReplicaWatch(replica)).take(passed_s, series)
            tick(passed_s)
            time.sleep(max(0.0, min(1.0, seconds - passed_s)))
    if not watches:
        raise UserError(f"{url} shows no replica's metrics yet; wait until one is ready.")
    return [watches[name].observation(facts) for name in sorted(watches)]


def series_by_replica(text: str) -> dict[str, dict[str, float]]:
    """Of a text with metrics, the values of each replica by name without prefix, summed over other labels; both
    prefixes of one name agree."""
    found: defaultdict[str, dict[str, dict[str, float]]] = defaultdict(lambda: {prefix: {} for prefix in _PREFIXES})
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for prefix in _PREFIXES:
                if sample.name.startswith(prefix):
                    series, name = found[sample.labels.get("worker", _ONE)][prefix], sample.name.removeprefix(prefix)
                    series[name] = series.get(name, 0.0) + float(sample.value)
                    if name == "info" and sample.labels.get("device") == "cpu":
                        series[RUNS_ON_CPU] = 1.0
    joined = {replica: {**by["sglang:"], **by["canopy_"]} for replica, by in found.items()}
    return {replica: series for replica, series in joined.items() if "num_queue_reqs" in series}


def _path(client: httpx.Client, url: str) -> str:
    try:
        answer = client.get(f"{url}/engine_metrics")
    except httpx.HTTPError as error:
        raise UserError(f"Cannot ask {url}: {error}; give --url the address of a gateway or worker.") from None
    if answer.status_code in (401, 403):
        raise UserError(f"{url} wants a key for its metrics; give --api-key.")
    return "/engine_metrics" if answer.status_code == 200 else "/metrics"


def _get(client: httpx.Client, url: str) -> str:
    try:
        answer = client.get(url)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise UserError(f"Cannot read {url}: {error}.") from None
    return answer.text


def _retracted(series: Series) -> float:
    return series.get("num_retracted_requests_total", series.get("num_retracted_reqs", 0.0))


def _startup(series: Series) -> StartupLine | None:
    free = series.get("startup_available_memory_bytes")
    if free is None or RUNS_ON_CPU in series:
        return None
    return StartupLine(
        max_total_num_tokens=int(series.get("max_total_num_tokens", 0)),
        chunked_prefill_size=None,
        max_prefill_tokens=0,
        max_running_requests=int(series.get("max_running_requests", 0)),
        context_len=int(series.get("context_length_tokens", 0)),
        device="gpu",
        available_gb=free / _GIB,
    )


def _facts(series: Series) -> Facts:
    weights, rows = series.get("weight_memory_bytes"), series.get("max_running_requests")
    return Facts(
        weights_gb=None if weights is None else weights / _GIB,
        max_running_requests=None if rows is None else int(rows),
        is_canopy="scheduler_steps_total" in series,
    )
