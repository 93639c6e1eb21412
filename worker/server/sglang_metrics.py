"""The same series under SGLang's names (--metrics-compat sglang), so that dashboards made for it work as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.server.scheduler_metrics import SchedulerMetrics

_GIB = 2.0**-30
_SCHEDULER_LABELS = {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


@dataclass(frozen=True, slots=True)
class _Name:
    """What a family is called there. `labels` are added; those of ours that `dropped` names leave."""

    name: str
    scale: float = 1.0
    labels: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()


_SAME = (
    *("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "num_used_tokens", "kv_evictable_tokens"),
    *("kv_available_tokens", "max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate"),
    *("new_token_ratio", "utilization", "decode_sum_seq_lens", "is_cuda_graph", "cuda_graph_passes"),
    *("num_retracted_requests", "num_retracted_input_tokens", "num_retracted_output_tokens"),
)
# Keys without the prefix, and of counters without `_total`.
SCHEDULER_NAMES: dict[str, tuple[_Name, ...]] = {name: (_Name(name),) for name in _SAME} | {
    "token_usage": (_Name("token_usage"), _Name("full_token_usage")),
    "num_used_tokens": (_Name("num_used_tokens"), _Name("kv_used_tokens")),
    "page_size_tokens": (_Name("page_size"),),
    "context_length_tokens": (_Name("context_len"),),
    "weight_memory_bytes": (_Name("weight_memory_usage_gb", _GIB),),
    "kv_pool_memory_bytes": (_Name("kv_cache_memory_usage_gb", _GIB),),
    "startup_available_memory_bytes": (_Name("startup_available_gpu_memory_gb", _GIB),),
    "startup_duration_seconds": (_Name("startup_time_seconds", labels=(("phase", "total"),)),),
}
FRONTEND_NAMES: dict[str, tuple[_Name, ...]] = {
    "num_requests": (_Name("num_requests"),),
    "prompt_tokens": (_Name("prompt_tokens"),),
    "generation_tokens": (_Name("generation_tokens"),),
    "cached_tokens": (_Name("cached_tokens", labels=(("cache_source", "device"),), dropped=("stream",)),),
    "num_aborted_requests": (_Name("num_aborted_requests"),),
    "structured_requests": (_Name("num_so_requests"),),
    "time_to_first_token_seconds": (_Name("time_to_first_token_seconds"),),
    "inter_token_latency_seconds": (_Name("inter_token_latency_seconds"),),
    "time_per_output_token_seconds": (_Name("time_per_output_token_seconds"),),
    "e2e_request_latency_seconds": (_Name("e2e_request_latency_seconds"),),
    "queue_time_seconds": (_Name("queue_time_seconds"),),
    "prompt_length_tokens": (_Name("prompt_tokens_histogram"),),
    "uncached_prompt_length_tokens": (_Name("uncached_prompt_tokens_histogram"),),
    "output_length_tokens": (_Name("generation_tokens_histogram"),),
}
# Of realtime_tokens_total, by its label `mode`.
_MODES = {
    "computed_prompt_tokens": "prefill_compute",
    "admitted_cached_tokens": "prefill_cache",
    "sampled_tokens": "decode",
}


class SglangMetrics(Collector):
    """Renders `frontend` and `scheduler` once more, renamed. What SGLang has and this engine has not is not there."""

    def __init__(self, frontend: Collector, scheduler: SchedulerMetrics) -> None:
        self._frontend = frontend
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """All families that have a name there."""
        families = list(self._scheduler.collect())
        yield from _renamed(self._frontend.collect(), FRONTEND_NAMES, {})
        yield from _renamed(families, SCHEDULER_NAMES, _SCHEDULER_LABELS)
        yield from _realtime_tokens(families)
        yield from _num_pages(families)


def _renamed(
    families: Iterable[Metric], names: dict[str, tuple[_Name, ...]], labels: dict[str, str]
) -> Iterator[Metric]:
    for family in families:
        for to in names.get(_plain(family), ()):
            renamed = Metric(f"sglang:{to.name}", family.documentation, family.type)
            sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
            for sample in family.samples:
                kept = {_label(k): v for k, v in sample.labels.items() if k not in to.dropped}
                key = (
                    sample.name.replace(family.name, renamed.name, 1),
                    tuple((kept | labels | dict(to.labels)).items()),
                )
                sums[key] = sums.get(key, 0.0) + sample.value * to.scale
            for (name, pairs), value in sums.items():
                renamed.add_sample(name, dict(pairs), value)
            yield renamed


def _realtime_tokens(families: Iterable[Metric]) -> Iterator[Metric]:
    total = Metric("sglang:realtime_tokens", "Tokens as they are computed, by what they are", "counter")
    for family in families:
        mode = _MODES.get(_plain(family))
        if mode is not None:
            for sample in family.samples:
                labels = sample.labels | _SCHEDULER_LABELS | {"mode": mode}
                total.add_sample("sglang:realtime_tokens_total", labels, sample.value)
    if total.samples:
        yield total


def _num_pages(families: Iterable[Metric]) -> Iterator[Metric]:
    for family in families:
        if _plain(family) == "kv_pool_pages":
            number = sum(sample.value for sample in family.samples)
            labels = {"model_name": family.samples[0].labels["model_name"]} | _SCHEDULER_LABELS
            pages = GaugeMetricFamily("sglang:num_pages", "Pages of the KV pool", labels=[*labels])
            pages.add_metric([*labels.values()], number)
            yield pages


def _plain(family: Metric) -> str:
    return family.name.removeprefix("canopy_")


def _label(name: str) -> str:
    return "is_streaming" if name == "stream" else name
