"""Exports spans over OTLP from a thread of its own. The one file that imports OpenTelemetry, and only when asked to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from common.errors import UserError
from common.tracing.settings import TracingSettings
from common.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_LOG = logging.getLogger(__name__)
_MAX_WAITING = 20_000  # groups of spans, most of one request
_MAX_BATCH = 512
_GATHER_S = 0.5  # how long a span waits for others to travel with
_TIMEOUT_S = 5.0  # of one export
CLOSE_S = 3.0


def open_sink(settings: TracingSettings, service: str, instance: str) -> OtlpSink | None:
    """What the settings ask for; None: no traces. `service`, `instance`: who we are. Raises UserError."""
    endpoint = settings.traces_endpoint
    if endpoint is None:
        return None
    check_extra(settings)
    from opentelemetry.sdk.resources import Resource

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it repeats each fault for every batch
    resource = Resource.create({"service.name": service, "service.instance.id": instance})
    return OtlpSink(_exporter(endpoint), resource, endpoint)


def check_extra(settings: TracingSettings) -> None:
    """Raise UserError if traces are wanted and the packages for them are not there."""
    if settings.traces_endpoint is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        name = (error.name or "opentelemetry").partition(".")[0]
        raise UserError(
            f"Traces need the extra `tracing` ({name} is missing): pip install 'canopy-serve[tracing]', or leave out "
            "--otlp-traces-endpoint and --enable-trace."
        ) from None


def _exporter(endpoint: str) -> SpanExporter:
    if "://" not in endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint=endpoint, insecure=True, timeout=_TIMEOUT_S)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    scheme, _, rest = endpoint.partition("://")
    host, _, path = rest.partition("/")
    return Http(endpoint=f"{scheme}://{host}/{path or 'v1/traces'}", timeout=_TIMEOUT_S)


class OtlpSink:
    """A SpanSink with a thread. What cannot be sent is dropped; one line says when that begins, one when it ends."""

    def __init__(self, exporter: SpanExporter, resource: Resource, endpoint: str) -> None:
        self._exporter = exporter
        self._resource = resource
        self._endpoint = endpoint
        self._waiting: SimpleQueue[Sequence[Span] | None] = SimpleQueue()  # None: the end
        self._dropped = 0  # since the last line about it
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="canopy-traces", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        if self._waiting.qsize() < _MAX_WAITING:
            self._waiting.put(spans)
        else:
            self._dropped += len(spans)

    def close(self) -> None:
        """Send what is there, for three seconds at most."""
        self._waiting.put(None)
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            batch = list(self._waiting.get() or ())
            goes_on = bool(batch)
            while goes_on and len(batch) < _MAX_BATCH:
                try:
                    more = self._waiting.get(timeout=_GATHER_S)
                except Empty:
                    break
                goes_on = more is not None
                batch += more or ()
            if batch:
                self._export(batch)

    def _export(self, batch: list[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([readable(span, self._resource) for span in batch])
        if result is SpanExportResult.SUCCESS:
            if self._failing or self._dropped:
                _LOG.warning("Traces go to %s again; %d spans were lost.", self._endpoint, self._dropped)
            self._failing, self._dropped = False, 0
            return
        self._dropped += len(batch)
        if not self._failing:
            self._failing = True
            _LOG.warning("Traces cannot be sent to %s; they are dropped until they can.", self._endpoint)


def readable(span: Span, resource: Resource) -> ReadableSpan:
    """A record as OpenTelemetry's exporters take it."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    def place(span_id: int) -> trace.SpanContext:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        return trace.SpanContext(span.context.trace_id, span_id, is_remote=False, trace_flags=flags)

    status = trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status()
    return ReadableSpan(
        span.name,
        context=place(span.context.span_id),
        parent=place(span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(name, timestamp=at_ns) for name, at_ns in span.events],
        kind=trace.SpanKind[span.kind.value],
        status=status,
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("canopy"),
    )
