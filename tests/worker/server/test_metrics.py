"""Histograms of latencies: default buckets and the operator's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from worker.config import WorkerSettings
from worker.server.metrics import Buckets, RequestMetrics


def bounds(registry: CollectorRegistry, series: str) -> list[str]:
    """The `le` labels of a histogram."""
    (metric,) = (metric for metric in registry.collect() if metric.name == f"canopy_{series}_seconds")
    return [sample.labels["le"] for sample in metric.samples if sample.name.endswith("_bucket")]


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
