"""Spans of the gateway: each request, its wait for a place, and each attempt at a worker.

On the data path only identities and times are noted; records are made when a request is over and leave in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from common.clock import Clock
from common.tracing.context import TRACEPARENT, TraceContext, decide, parse_traceparent
from common.tracing.spans import Span, SpanKind, SpanSink, WallTime
from gateway.proxy.exchange import Exchange
from gateway.proxy.inbound import Inbound
from gateway.routing.policy import Choice

_HEADER = TRACEPARENT.encode()
_CLIENT_LEFT = 499


@dataclass(slots=True)
class _Attempt:
    context: TraceContext
    choice: Choice
    start_s: float
    end_s: float = 0.0
    error: str = ""


@dataclass(slots=True)
class _Trace:
    """One request under way. `parent_id`: the client's span, 0 if it named none."""

    context: TraceContext
    parent_id: int
    start_s: float
    first_token_s: float | None = None
    attempts: list[_Attempt] = field(default_factory=list)


class GatewayTracer:
    """An ExchangeObserver that traces the share `ratio` of requests, and those whose clients say so."""

    def __init__(self, sink: SpanSink, clock: Clock, ratio: float) -> None:
        self._sink = sink
        self._clock = clock
        self._ratio = ratio
        self._wall = WallTime(clock)
        self._traces: dict[Exchange, _Trace] = {}

    def chose(self, exchange: Exchange, choice: Choice) -> None:
        trace = self._traces.get(exchange)
        if trace is None:
            trace = self._traces[exchange] = self._begin(exchange)
        attempt = _Attempt(trace.context.child(), choice, self._clock.now_s())
        trace.attempts.append(attempt)
        exchange.inbound = with_parent(exchange.inbound, attempt.context)

    def retried(self, exchange: Exchange, cause: str) -> None:
        trace = self._traces.get(exchange)
        if trace is not None:
            trace.attempts[-1].end_s = self._clock.now_s()
            trace.attempts[-1].error = cause

    def first_token(self, exchange: Exchange, ttft_s: float) -> None:
        trace = self._traces.get(exchange)
        if trace is not None:
            trace.first_token_s = exchange.start_s + ttft_s

    def ended(self, exchange: Exchange, status: int) -> None:
        trace = self._traces.pop(exchange, None) or self._begin(exchange)
        if trace.context.sampled:
            self._sink.put(self._spans(exchange, trace, status))

    def _begin(self, exchange: Exchange) -> _Trace:
        given = next((value for name, value in exchange.inbound.head.headers if name == _HEADER), b"")
        parent = parse_traceparent(given.decode("latin-1"))
        context = decide(parent, self._ratio)
        return _Trace(context, parent.span_id if parent is not None else 0, exchange.start_s)

    def _spans(self, exchange: Exchange, trace: _Trace, status: int) -> list[Span]:
        """All of one request, the outermost first."""
        now_s, inbound, ns = self._clock.now_s(), exchange.inbound, self._wall.ns
        spans = [
            Span(
                name=f"{inbound.head.method} {inbound.endpoint}",
                context=trace.context,
                parent_id=trace.parent_id,
                kind=SpanKind.SERVER,
                start_ns=ns(trace.start_s),
                end_ns=ns(now_s),
                attributes={
                    "http.request.method": inbound.head.method,
                    "url.path": inbound.endpoint,
                    "http.response.status_code": status,
                    "canopy.request_id": inbound.request_id.decode("latin-1"),
                    "gen_ai.request.model": inbound.route.model or "",
                    "canopy.stream": inbound.route.stream,
                },
                events=[] if trace.first_token_s is None else [("first token", ns(trace.first_token_s))],
                error=_error(status),
            )
        ]
        admitted_s = trace.attempts[0].start_s if trace.attempts else now_s
        spans.append(
            Span(
                name="admission",
                context=trace.context.child(),
                parent_id=trace.context.span_id,
                kind=SpanKind.INTERNAL,
                start_ns=ns(trace.start_s),
                end_ns=ns(admitted_s),
            )
        )
        for number, attempt in enumerate(trace.attempts, 1):
            spans.append(self._attempt_span(trace, attempt, number, status, attempt.end_s or now_s))
        return spans

    def _attempt_span(self, trace: _Trace, attempt: _Attempt, number: int, status: int, end_s: float) -> Span:
        choice, ns = attempt.choice, self._wall.ns
        return Span(
            name="attempt",
            context=attempt.context,
            parent_id=trace.context.span_id,
            kind=SpanKind.CLIENT,
            start_ns=ns(attempt.start_s),
            end_ns=ns(end_s),
            attributes={
                "server.address": choice.worker.name,
                "canopy.attempt": number,
                "canopy.route.reason": choice.reason,
                "canopy.route.prompt_tokens": choice.prompt_tokens,
                "canopy.route.cached_tokens": choice.cached_tokens,
                "canopy.route.expected_wait_ms": round(choice.wait_s * 1000, 3),
            },
            error=attempt.error or ("" if attempt.end_s else _error(status)),
        )


def _error(status: int) -> str:
    if status == _CLIENT_LEFT:
        return "the client left"
    return f"status {status}" if status >= 500 else ""


def with_parent(inbound: Inbound, context: TraceContext) -> Inbound:
    """The same request with `context` as its traceparent, in place of the client's."""
    head = inbound.head
    others = [line for line in head.lines.splitlines(keepends=True) if not line.startswith(_HEADER + b":")]
    lines = b"".join((*others, b"%b: %b\r\n" % (_HEADER, context.header().encode())))
    return msgspec.structs.replace(inbound, head=msgspec.structs.replace(head, lines=lines))
