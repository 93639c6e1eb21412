"""Prometheus series of the scheduler, from its last load report, and of the replica as a whole. Prefix `canopy_`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.metrics import add_histogram, counter, gauge
from worker.ipc.messages import BATCH_SIZE_BOUNDS, STEP_TIME_BOUNDS_S, LoadReport, SchedulerReady

_GAUGES = {
    "num_running_reqs": ("num_running_reqs", "Requests in the decode batch"),
    "num_queue_reqs": ("num_waiting_reqs", "Requests waiting"),
    "num_waiting_tokens": ("num_waiting_tokens", "Prompt tokens of waiting requests"),
    "num_used_tokens": ("num_used_tokens", "KV pool tokens that running requests hold"),
    "kv_evictable_tokens": ("num_evictable_tokens", "KV pool tokens that only the prefix cache holds"),
    "kv_available_tokens": ("num_free_tokens", "KV pool tokens that nobody holds"),
    "max_total_num_tokens": ("max_total_num_tokens", "Size of the KV pool in tokens"),
    "max_running_requests": ("max_running_requests", "Bound on running requests"),
    "token_usage": ("token_usage", "Used share of the KV pool"),
    "gen_throughput": ("gen_throughput", "Generated tokens per second, 0 when idle"),
    "cache_hit_rate": ("cache_hit_rate", "Cached share of all prompt tokens so far"),
    "new_token_ratio": ("new_token_ratio", "Share of their remaining output that running requests are charged"),
}
_NOW = {
    "num_retracted_reqs": ("retracted_waiting", "Retracted requests that wait to run again"),
    "decode_sum_seq_lens": ("decode_context_tokens", "Tokens of context of all running requests"),
    "schedule_conservativeness": ("schedule_conservativeness", "Schedule conservativeness in force"),
    "schedule_conservativeness_auto": ("learns_conservativeness", "Whether it is learned: auto"),
    "is_cuda_graph": ("last_decode_in_graph", "Whether a captured CUDA graph computed the last step with decodes"),
}
_COUNTERS = {
    "num_retracted_requests": ("retracted_requests_total", "Retractions"),
    "admitted_prompt_tokens": ("prompt_tokens_total", "Prompt tokens of admitted requests"),
    "admitted_cached_tokens": ("cached_tokens_total", "Prompt tokens of those that the prefix cache held"),
    "sampled_tokens": ("generation_tokens_total", "Tokens sampled, those of sequences under way included"),
    "scheduler_steps": ("steps_total", "Forward passes"),
}
_TOTALS = {
    "num_preempted_requests": ("preempted_requests", "Requests that gave way to more urgent ones"),
    "num_retracted_input_tokens": ("retracted_prompt_tokens", "Prompt tokens of retracted requests"),
    "num_retracted_output_tokens": ("retracted_output_tokens", "Output tokens that retracted requests had"),
    "computed_prompt_tokens": ("computed_prompt_tokens", "Tokens of prefill chunks, recomputed ones included"),
    "scheduler_cpu_seconds": ("cpu_s", "CPU time of the scheduler process"),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a replica does not change, told as labels of canopy_info; `created_s`: Unix time of its start."""

    model: str
    version: str
    incarnation: str
    created_s: float


class SchedulerMetrics(Collector):
    """Renders the last load report; `/metrics` fetches a fresh one before each scrape. `ready_after_s`: how long the
    start took."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._common = {"model_name": facts.model}
        self.report: LoadReport | None = None
        self.ready: SchedulerReady | None = None
        self.ready_after_s = 0.0

    def collect(self) -> Iterator[Metric]:
        """The replica's facts always; the scheduler's series after the first report."""
        yield self._info()
        created_s = self._facts.created_s
        yield gauge("canopy_start_time_seconds", "Unix time at which the replica started", created_s, "", self._common)
        yield gauge("canopy_ready", "Whether the model is loaded", float(self.ready is not None), "", self._common)
        if self.ready is not None:
            yield from self._capacity(self.ready)
        if self.report is not None:
            yield from self._load(self.report)
            yield from self._pages(self.report)
            yield from self._steps(self.report)

    def _info(self) -> Metric:
        ready, facts = self.ready, self._facts
        labels = {
            "model_name": facts.model,
            "version": facts.version,
            "incarnation": facts.incarnation,
            "device": ready.device if ready is not None else "",
            "dtype": ready.dtype if ready is not None else "",
            "architecture": ready.architectures[0] if ready is not None and ready.architectures else "",
        }
        family = GaugeMetricFamily("canopy_info", "What this replica is, as labels; always 1", labels=[*labels])
        family.add_metric([*labels.values()], 1)
        return family

    def _capacity(self, ready: SchedulerReady) -> Iterator[Metric]:
        for name, text, value in (
            ("startup_duration_seconds", "From the start until the model was loaded", self.ready_after_s),
            ("page_size_tokens", "Tokens of a page of the KV pool", ready.page_size),
            ("context_length_tokens", "Longest sequence", ready.context_len),
            ("weight_memory_bytes", "Memory of the weights", ready.weight_bytes),
            ("kv_pool_memory_bytes", "Memory of the KV pool", ready.kv_pool_bytes),
            (
                "startup_available_memory_bytes",
                "Memory of the device left beside weights, KV pool and graphs after the start",
                ready.available_memory_bytes,
            ),
        ):
            yield gauge(f"canopy_{name}", text, float(value), "", self._common)

    def _load(self, report: LoadReport) -> Iterator[Metric]:
        totals = report.scheduler
        for name, (field, text) in _GAUGES.items():
            yield gauge(f"canopy_{name}", text, float(getattr(report, field)), "", self._common)
        for name, (field, text) in _NOW.items():
            yield gauge(f"canopy_{name}", text, float(getattr(totals, field)), "", self._common)
        for name, (field, text) in _COUNTERS.items():
            yield counter(f"canopy_{name}", text, float(getattr(report, field)), "", self._common)
        for name, (field, text) in _TOTALS.items():
            yield counter(f"canopy_{name}", text, float(getattr(totals, field)), "", self._common)
        utilization = report.num_running_reqs / report.max_running_requests
        yield gauge("canopy_utilization", "Running requests by their bound", utilization, "", self._common)

    def _pages(self, report: LoadReport) -> Iterator[Metric]:
        """The pool in pages: free + cached + used is all of it."""
        page_size = self.ready.page_size if self.ready is not None else 1
        tokens = {
            "free": report.num_free_tokens,
            "cached": report.num_evictable_tokens,
            "used": report.num_used_tokens,
        }
        pages = {state: number / page_size for state, number in tokens.items()}
        yield gauge("canopy_kv_pool_pages", "Pages of the KV pool by what they hold", pages, "state", self._common)

    def _steps(self, report: LoadReport) -> Iterator[Metric]:
        totals = report.scheduler
        modes = {
            "decode_cuda_graph": totals.graph_decode_steps,
            "decode_none": totals.eager_decode_steps,
            "prefill_none": totals.prefill_steps,
        }
        text = "Forward passes by kind, and whether a captured CUDA graph computed them"
        yield counter("canopy_cuda_graph_passes", text, modes, "mode", self._common)
        for name, text, bounds, counts, total in (
            (
                "step_time_seconds",
                "From the end of a step, or its launch if later, to the end of the next",
                STEP_TIME_BOUNDS_S,
                totals.step_time_counts,
                totals.step_time_sum_s,
            ),
            ("batch_size", "Sequences of a step", BATCH_SIZE_BOUNDS, totals.batch_size_counts, totals.batch_size_sum),
        ):
            family = HistogramMetricFamily(f"canopy_{name}", text, labels=["model_name"])
            add_histogram(family, [self._facts.model], bounds, counts or [0] * (len(bounds) + 1), total)
            yield family
