"""Logs, metrics and traces."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from common.kv_events import KvEventsConfig
from common.settings import flag_of, option
from common.settings.types import JsonObject
from common.tracing.settings import TracingSettings

_option = partial(option, category="Observability")

_LogLevel = Literal["debug", "info", "warning", "error"]
_Buckets = list[Annotated[float, Field(ge=0)]]
_PREFIX = "the labels are fixed, add yours in Prometheus' relabel_configs"


class ObservabilitySettings(TracingSettings):
    """Observability."""

    log_level: _LogLevel = _option("info", "log level")
    log_level_http: _LogLevel | None = _option(
        None, "log level of the HTTP server, info = a line for each request; without it warning"
    )
    log_format: Literal["text", "json"] = _option("text", "log lines as text or one JSON object each")
    decode_log_interval: int = _option(40, "decode steps between log lines", ge=1)
    log_requests: bool = _option(False, "log each request when it arrives and when it ends")
    log_requests_level: int = _option(
        2,
        "0 = ids and counts, 1 = sampling parameters too, 2 = the start of texts too, 3 = whole texts",
        ge=0,
        le=3,
    )
    log_requests_format: Literal["text", "json"] = _option("text", "lines of --log-requests as text or JSON")
    enable_metrics: bool = _option(True, "serve /metrics")
    metrics_compat: Literal["sglang"] | None = _option(
        None, "serve the metrics under SGLang's names too, for dashboards made for it"
    )

    bucket_time_to_first_token: _Buckets | None = _option(
        None, "upper bounds of the TTFT histogram in seconds, rising", min_length=1
    )
    bucket_inter_token_latency: _Buckets | None = _option(
        None, "upper bounds of the ITL histogram in seconds, rising", min_length=1
    )
    bucket_e2e_request_latency: _Buckets | None = _option(
        None, "upper bounds of the histogram of whole requests in seconds, rising", min_length=1
    )

    log_requests_target: list[str] = _option(
        [], "where lines of --log-requests go", not_built="they go to standard error with the other lines"
    )
    enable_metrics_for_all_schedulers: bool = _option(
        False, "metrics of every rank", not_built="a replica has one scheduler, leave it out"
    )
    prompt_tokens_buckets: list[str] = _option([], "histogram buckets of prompt tokens", not_built="leave it out")
    generation_tokens_buckets: list[str] = _option([], "histogram buckets of output tokens", not_built="leave it out")
    extra_metric_labels: JsonObject | None = _option(None, "labels for every metric", not_built=_PREFIX)
    tokenizer_metrics_custom_labels_header: str = _option(
        "x-custom-labels", "request header with labels", not_built=_PREFIX
    )
    tokenizer_metrics_allowed_custom_labels: list[str] = _option([], "labels requests may set", not_built=_PREFIX)
    export_metrics_to_file: bool = _option(
        False, "a record for each request in files", not_built="use --log-requests --log-requests-format json"
    )
    export_metrics_to_file_dir: str | None = _option(
        None, "where those files go", not_built="use --log-requests --log-requests-format json"
    )
    crash_dump_folder: str | None = _option(
        None, "recent requests after a crash", not_built="use --log-requests to keep them"
    )
    kv_events_config: JsonObject | None = _option(
        None,
        "publish what the prefix cache holds, JSON as in SGLang: publisher (zmq), endpoint, replay_endpoint, topic...; "
        "endpoints that are left out get free ports at --host",
    )
    uvicorn_access_log_exclude_prefixes: list[str] = _option([], "paths left out of the log of --log-level-http info")

    @field_validator("kv_events_config", mode="after")
    @classmethod
    def _check_events(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            KvEventsConfig.of(value)
        return value

    @model_validator(mode="after")
    def _check_buckets(self) -> ObservabilitySettings:
        for name in ("bucket_time_to_first_token", "bucket_inter_token_latency", "bucket_e2e_request_latency"):
            bounds = getattr(self, name) or []
            if any(upper <= lower for lower, upper in pairwise(bounds)):
                raise ValueError(f"{flag_of(name)} must list rising numbers, each once; sort them.")
        return self
