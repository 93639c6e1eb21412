"""From metrics of replicas, sampled over a window, to what experiments compare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from common.tuning.replica_watch import RUNS_ON_CPU, Series
from deploy.tune.trials.bounds import Value
from deploy.tune.trials.laboratory import Stretch
from worker.config import WorkerSettings
from worker.engine.memory import gpu_defaults

GIB = 2**30
_WORK = ("admitted_prompt_tokens_total", "sampled_tokens_total")
_AGAIN = ("num_retracted_input_tokens_total", "num_retracted_output_tokens_total")


class Restarted(Exception):
    """A replica's counters begin anew."""


def stretch_of(samples: Sequence[tuple[float, Series]]) -> Stretch:
    """What happened between the first and the last of at least two samples (time in seconds, series of one replica).
    Raises Restarted."""
    (begin_s, first), (end_s, last) = samples[0], samples[-1]

    def grown(*names: str) -> float:
        growth = [last.get(name, 0.0) - first.get(name, 0.0) for name in names]
        if min(growth) < 0:
            raise Restarted
        return sum(growth)

    return Stretch(
        seconds=end_s - begin_s,
        tokens=grown(*_WORK),
        running=fmean(series.get("num_running_reqs", 0.0) for _, series in samples),
        queue_share=fmean(float(series.get("num_queue_reqs", 0.0) > 0) for _, series in samples),
        recomputed_tokens=grown(*_AGAIN),
        retractions=grown("num_retracted_requests_total"),
        first_tokens=grown("time_to_first_token_seconds_count"),
        ttft_sum_s=grown("time_to_first_token_seconds_sum"),
        failures=grown("num_aborted_requests_total"),
    )


def memory_gb(series: Series) -> float | None:
    """Of the GPU, from what weights, pool and the rest take; None where there is no GPU."""
    free = series.get("startup_available_memory_bytes")
    if free is None or RUNS_ON_CPU in series:
        return None
    return (series.get("weight_memory_bytes", 0.0) + series.get("kv_pool_memory_bytes", 0.0) + free) / GIB


def settings_in_effect(given: Mapping[str, object], series: Series) -> dict[str, Value]:
    """Values of the flags that experiments may touch, as far as they are known: those `given` by field name, else
    defaults, by GPU memory where they depend on it."""
    usual = WorkerSettings(model_path="none")
    known: dict[str, Value | None] = {
        "schedule-conservativeness": _value(given, "schedule_conservativeness", usual.schedule_conservativeness),
        "schedule-policy": _value(given, "schedule_policy", usual.schedule_policy),
        "max-running-requests": int(series["max_running_requests"]) if "max_running_requests" in series else None,
        "chunked-prefill-size": _value(given, "chunked_prefill_size", None),
    }
    memory = memory_gb(series)
    if memory:
        defaults = gpu_defaults(int(memory * GIB))
        static = series.get("weight_memory_bytes", 0.0) + series.get("kv_pool_memory_bytes", 0.0)
        known |= {
            "chunked-prefill-size": known["chunked-prefill-size"] or defaults.chunked_prefill_size,
            "cuda-graph-max-bs": _value(given, "cuda_graph_max_bs", defaults.max_graph_batch_size),
            "mem-fraction-static": _value(given, "mem_fraction_static", float(f"{static / GIB / memory:.3g}")),
        }
    return {flag: value for flag, value in known.items() if value is not None}


def _value(given: Mapping[str, object], field: str, default: Value | None) -> Value | None:
    found = given.get(field)
    return found if isinstance(found, int | float | str) else default
