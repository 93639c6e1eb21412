"""A small OTLP collector: takes traces over real HTTP, and shows them as trees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """One span as it came. Ids are hexadecimal; `parent` is empty for a root; times in nanoseconds."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]
    error: str


class Collector:
    """What came so far. `status`: what it answers."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.paths: set[str] = set()
        self.status = 200
        self.posts = 0
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        """One export."""
        self.posts += 1
        self.paths.add(path)
        if self.status == 200:
            self.spans += spans_of(body)

    def of(self, trace: str) -> list[Received]:
        """The spans of one trace, by their starts."""
        return sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.start_ns)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 15) -> None:
        """Wait until enough has come."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.02)


def spans_of(body: bytes) -> list[Received]:
    """The spans of an ExportTraceServiceRequest."""
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = {item.key: item.value.string_value for item in resource.resource.attributes}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            found.append(
                Received(
                    service=about["service.name"],
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes={item.key: _value(item.value) for item in span.attributes},
                    events={event.name: event.time_unix_nano for event in span.events},
                    error=span.status.message,
                )
            )
    return found


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def otlp_collector() -> Iterator[Collector]:
    """Listens on a free port while inside."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
