"""The export: over real HTTP, from a thread, without waiting, and told when it fails."""

from __future__ import annotations

import subprocess
import sys
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from common.errors import UserError
from common.settings import load
from common.tracing.context import root
from common.tracing.otlp import check_extra, open_sink
from common.tracing.settings import TracingSettings
from common.tracing.spans import Span, SpanKind
from tests.helpers.otlp_collector import Received, otlp_collector, spans_of


def span(name: str = "s", **fields: Any) -> Span:
    return Span(
        name=name,
        context=root(sampled=True),
        parent_id=7,
        kind=SpanKind.SERVER,
        start_ns=10**18,
        end_ns=10**18 + 5,
        **fields,
    )


def check(one: Received, sent: Span) -> None:
    assert (one.service, one.name, one.error) == ("me", "s", "broke")
    assert (one.trace, one.id) == (f"{sent.context.trace_id:032x}", f"{sent.context.span_id:016x}")
    assert (one.parent, one.start_ns, one.end_ns) == (f"{7:016x}", 10**18, 10**18 + 5)
    assert one.attributes == {"text": "x", "number": 3, "share": 0.5, "yes": True}
    assert one.events == {"token": 10**18 + 1}


FULL: dict[str, Any] = {
    "attributes": {"text": "x", "number": 3, "share": 0.5, "yes": True},
    "events": [("token", 10**18 + 1)],
    "error": "broke",
}


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
async def test_over_http(path: str) -> None:
    with otlp_collector() as collector:
        sink = open_sink(TracingSettings(otlp_traces_endpoint=collector.url + path), "me", "1")
        assert sink is not None
        sent = span(**FULL)
        sink.put([sent])
        sink.close()
        assert collector.paths == {"/v1/traces"}
        check(collector.spans[0], sent)


def test_over_grpc() -> None:
    bodies: list[bytes] = []

    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        bodies.append(body)
        return ExportTraceServiceResponse().SerializeToString()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        sink = open_sink(TracingSettings(otlp_traces_endpoint=f"127.0.0.1:{port}"), "me", "1")
        assert sink is not None
        sent = span(**FULL)
        sink.put([sent])
        sink.close()
        check(spans_of(bodies[0])[0], sent)
    finally:
        server.stop(None).wait()


async def test_a_collector_that_refuses_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with otlp_collector() as collector:
        collector.status = 400
        sink = open_sink(TracingSettings(otlp_traces_endpoint=collector.url), "me", "1")
        assert sink is not None
        for number in (1, 2):
            sink.put([span()])
            await collector.until(lambda number=number: collector.posts >= number)  # type: ignore[misc]
        collector.status = 200
        sink.put([span("after")])
        await collector.until(lambda: bool(collector.spans))
        sink.close()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("common.tracing")]
    assert said == [
        f"Traces cannot be sent to {collector.url}; they are dropped until they can.",
        f"Traces go to {collector.url} again; 2 spans were lost.",
    ]


@pytest.mark.parametrize(
    ("flags", "endpoint"),
    [
        ("", None),
        ("--enable-trace", "localhost:4317"),
        ("--otlp-traces-endpoint http://h:4318", "http://h:4318"),
        ("--enable-trace --otlp-traces-endpoint [::1]:4317", "[::1]:4317"),
    ],
)
def test_what_turns_traces_on(flags: str, endpoint: str | None) -> None:
    assert load(TracingSettings, flags.split(), {}, prog="p").settings.traces_endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["localhost", "http://", "ftp://h:1", "h:1/path", "http://h:1/v1?x"])
def test_bad_endpoints_are_one_sentence(endpoint: str) -> None:
    with pytest.raises(UserError, match="--otlp-traces-endpoint.*http://host:4318"):
        load(TracingSettings, ["--otlp-traces-endpoint", endpoint], {}, prog="p")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    check_extra(TracingSettings())
    with pytest.raises(UserError, match=r"pip install 'canopy-serve\[tracing\]'"):
        check_extra(TracingSettings(enable_trace=True))


def test_off_it_imports_nothing() -> None:
    program = """
import sys
import common.tracing.otlp, gateway.tracing, worker.server.tracing
print([name for name in sys.modules if name.startswith(("opentelemetry", "grpc"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
