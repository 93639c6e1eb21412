"""Settings of traces, the same for gateway and worker."""

from __future__ import annotations

import re
from functools import partial

from pydantic import field_validator

from common.settings import Settings, option

_option = partial(option, category="Observability")
_GRPC = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_HTTP = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
DEFAULT_ENDPOINT = "localhost:4317"


class TracingSettings(Settings):
    """Traces. They need the extra `tracing`."""

    enable_trace: bool = _option(False, f"send OpenTelemetry traces, to {DEFAULT_ENDPOINT} if nothing else is named")
    otlp_traces_endpoint: str | None = _option(
        None, "where traces go, and that they do: http://host:4318 for OTLP over HTTP, host:4317 for OTLP over gRPC"
    )
    trace_sample_ratio: float = _option(
        1, "share of requests that are traced, of those whose clients have not decided", ge=0, le=1
    )

    @field_validator("otlp_traces_endpoint", mode="after")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not (_GRPC.fullmatch(value) or _HTTP.fullmatch(value)):
            raise ValueError("must be http://host:4318 (OTLP over HTTP) or host:4317 (OTLP over gRPC).")
        return value

    @property
    def traces_endpoint(self) -> str | None:
        """Where traces go; None: there are none."""
        return self.otlp_traces_endpoint or (DEFAULT_ENDPOINT if self.enable_trace else None)
