"""Metrics of a replica: histograms and their buckets, the scheduler's numbers, SGLang's names for them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.fake_scheduler import ready_message
from worker.config import WorkerSettings
from worker.ipc.messages import (
    BATCH_SIZE_BOUNDS,
    STEP_TIME_BOUNDS_S,
    FinishReason,
    GenerateRequest,
    LoadReport,
    SchedulerTotals,
    TokenDelta,
)
from worker.sampling_params import GrammarAsked, SamplingParams
from worker.server.answers import Answer
from worker.server.metrics import Buckets, RequestMetrics
from worker.server.scheduler_metrics import Facts, SchedulerMetrics
from worker.server.served_weights import ServedWeights
from worker.server.sglang_metrics import FRONTEND_NAMES, SCHEDULER_NAMES, SglangMetrics

READY = ready_message(page_size=16)


def bounds(registry: CollectorRegistry, series: str) -> list[str]:
    """The `le` labels of one label set of a histogram."""
    (metric,) = (metric for metric in registry.collect() if metric.name == f"canopy_{series}_seconds")
    samples = [sample for sample in metric.samples if sample.name.endswith("_bucket")]
    return [s.labels["le"] for s in samples if s.labels.get("stream", "true") == "true"]


def answer(outputs: int, *, streamed: bool, reason: FinishReason) -> Answer:
    """One of ten prompt tokens, four of them cached, that took a second a token from the third second on."""
    grammar = GrammarAsked(kind="json", text="", param="response_format") if streamed else None
    request = GenerateRequest(rid="a", input_ids=[1] * 10, sampling=SamplingParams(grammar=grammar))
    made = Answer("a", request, 0, None, 0.0, ServedWeights("m", "v"), streamed=streamed)  # type: ignore[arg-type]
    made.output_ids = [1] * outputs
    made.last = TokenDelta(rid="a", token_ids=[], prompt_tokens=10, cached_tokens=4, completion_tokens=outputs)
    made.finish = reason
    made.first_s, made.last_s = 2.0, 2.0 + outputs - 1
    return made


def load_report() -> LoadReport:
    """As from a scheduler that has done one decode of three sequences."""
    totals = SchedulerTotals(
        retracted_prompt_tokens=11,
        computed_prompt_tokens=70,
        graph_decode_steps=5,
        eager_decode_steps=1,
        step_time_counts=[0, 6] + [0] * (len(STEP_TIME_BOUNDS_S) - 1),
        step_time_sum_s=0.024,
        batch_size_counts=[0, 0, 6] + [0] * (len(BATCH_SIZE_BOUNDS) - 2),
        batch_size_sum=18.0,
        last_decode_in_graph=True,
    )
    return LoadReport(
        call_id=0,
        num_running_reqs=3,
        num_waiting_reqs=2,
        num_used_tokens=48,
        num_evictable_tokens=32,
        num_free_tokens=80,
        max_total_num_tokens=160,
        num_waiting_tokens=20,
        token_usage=0.3,
        gen_throughput=750.0,
        cache_hit_rate=0.25,
        new_token_ratio=0.6,
        max_running_requests=12,
        prompt_tokens_total=120,
        cached_tokens_total=30,
        generation_tokens_total=18,
        prefill_s_total=0.1,
        retracted_requests_total=1,
        finished_requests_total=7,
        aborted_requests_total=1,
        steps_total=6,
        scheduler=totals,
    )


def scheduler_metrics() -> SchedulerMetrics:
    made = SchedulerMetrics(Facts("m", "1.0", "life", 1000.0))
    made.ready, made.report, made.ready_after_s = READY, load_report(), 3.0
    return made


def test_own_buckets() -> None:
    settings = WorkerSettings(
        model_path="m",
        bucket_time_to_first_token=[0.5, 2],
        bucket_inter_token_latency=[0.01],
        bucket_e2e_request_latency=[10, 60, 600],
    )
    registry = CollectorRegistry()
    RequestMetrics(registry, "m", Buckets.of(settings))
    assert bounds(registry, "time_to_first_token") == ["0.5", "2.0", "+Inf"]
    assert bounds(registry, "inter_token_latency") == ["0.01", "+Inf"]
    assert bounds(registry, "e2e_request_latency") == ["10.0", "60.0", "600.0", "+Inf"]


def test_default_buckets_stay_where_none_are_named() -> None:
    settings = WorkerSettings(model_path="m", bucket_inter_token_latency=[0.01])
    registry, plain = CollectorRegistry(), CollectorRegistry()
    RequestMetrics(registry, "m", Buckets.of(settings))
    RequestMetrics(plain, "m")
    for series in ("time_to_first_token", "e2e_request_latency", "queue_time"):
        assert bounds(registry, series) == bounds(plain, series)
    assert len(bounds(plain, "inter_token_latency")) > 10


def test_requests_are_counted_by_how_they_ended() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, "m")
    metrics.on_first_token(0.3, 0.1, stream=True)
    metrics.on_tokens(0.2, 2)
    metrics.on_end(answer(3, streamed=True, reason=FinishReason(kind="stop")), 5.0)
    metrics.on_end(answer(1, streamed=False, reason=FinishReason(kind="length")), 2.0)
    metrics.on_end(answer(0, streamed=False, reason=FinishReason(kind="abort")), 2.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"canopy_{name}", {"model_name": "m", **labels})

    assert [value("finished_requests_total", reason=r) for r in ("stop", "length", "abort")] == [1, 1, 1]
    assert (value("num_aborted_requests_total"), value("structured_requests_total")) == (1, 1)
    assert (value("num_requests_total", stream="true"), value("num_requests_total", stream="false")) == (1, 2)
    assert value("generation_tokens_total", stream="true") == 3
    assert value("cached_tokens_total", stream="false") == 8
    assert (value("inter_token_latency_seconds_count"), value("inter_token_latency_seconds_sum")) == (2, 0.2)
    assert value("inter_token_latency_seconds_bucket", le="0.1") == 2
    assert (value("time_per_output_token_seconds_count"), value("time_per_output_token_seconds_sum")) == (1, 1)
    assert value("uncached_prompt_length_tokens_sum") == 18
    assert value("queue_time_seconds_count") == 1


def test_the_pool_in_pages_and_what_steps_were() -> None:
    registry = CollectorRegistry()
    registry.register(scheduler_metrics())

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"canopy_{name}", {"model_name": "m", **labels})

    page = READY.page_size
    pages = [value("kv_pool_pages", state=state) for state in ("free", "cached", "used")]
    assert pages == [80 / page, 32 / page, 48 / page]
    assert value("cuda_graph_passes_total", mode="decode_cuda_graph") == 5
    assert (value("step_time_seconds_count"), value("step_time_seconds_bucket", le="0.002")) == (6, 0)
    assert value("batch_size_sum") == 18
    assert value("startup_duration_seconds") == 3.0
    assert value("start_time_seconds") == 1000.0


def test_every_series_has_its_name_in_sglang() -> None:
    registry = CollectorRegistry()
    scheduler, frontend = scheduler_metrics(), RequestMetrics(CollectorRegistry(), "m")
    frontend.on_end(answer(3, streamed=True, reason=FinishReason(kind="stop")), 5.0)
    registry.register(SglangMetrics(frontend, scheduler))
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    wanted = {name.name for names in (SCHEDULER_NAMES | FRONTEND_NAMES).values() for name in names}
    assert set(families) == {f"sglang:{name}" for name in wanted | {"realtime_tokens", "num_pages"}}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sglang:{name}", {"model_name": "m", **labels})

    ranks = {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    assert value("num_running_reqs", **ranks) == 3
    assert value("num_pages", **ranks) == 160 / READY.page_size
    assert value("realtime_tokens_total", mode="prefill_compute", **ranks) == 70
    assert value("cached_tokens_total", cache_source="device") == 4
    assert value("generation_tokens_total", is_streaming="true") == 3
    assert value("e2e_request_latency_seconds_bucket", is_streaming="true", le="6.0") == 1
    assert value("weight_memory_usage_gb", **ranks) == READY.weight_bytes / 2**30
    assert families["sglang:time_to_first_token_seconds"].type == "histogram"
