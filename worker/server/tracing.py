"""Spans of one replica: each generation request; queue, prefill and decode of its sequences by the scheduler's times.

While a request runs only its identity and a few times are kept; the spans are made after its answer is out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.clock import MonotonicClock
from common.logs import REQUEST_ID
from common.tracing.context import TRACEPARENT, TraceContext, decide, parse_traceparent
from common.tracing.spans import Attributes, Span, SpanKind, SpanSink, WallTime
from worker.server.answers import Answer

_TRACED_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"})


class RequestTrace:
    """One HTTP request that is traced. `parent_id`: the span of whoever sent it, 0 if it named none."""

    def __init__(self, context: TraceContext, parent_id: int, start_s: float) -> None:
        self.context = context
        self.parent_id = parent_id
        self.start_s = start_s
        self.sent_s = 0.0
        self.answers: Sequence[Answer] = ()

    def sent(self, answers: Sequence[Answer], now_s: float) -> None:
        """Its sequences go to the scheduler."""
        self.answers, self.sent_s = answers, now_s


# Of the request that the running task serves.
CURRENT_TRACE: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)


class TraceRequests:
    """ASGI middleware: traces generation requests, those whose senders say so and the share `ratio` of others."""

    def __init__(self, app: ASGIApp, sink: SpanSink, ratio: float) -> None:
        self._app = app
        self._sink = sink
        self._ratio = ratio
        self._clock = MonotonicClock()  # the scheduler's: its times are compared with ours
        self._wall = WallTime(self._clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _TRACED_PATHS:
            return await self._app(scope, receive, send)
        parent = parse_traceparent(Headers(scope=scope).get(TRACEPARENT, ""))
        context = decide(parent, self._ratio)
        if not context.sampled:
            return await self._app(scope, receive, send)
        trace = RequestTrace(context, parent.span_id if parent is not None else 0, self._clock.now_s())
        status = 0

        async def send_with_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = CURRENT_TRACE.set(trace)
        try:
            await self._app(scope, receive, send_with_status)
        finally:
            CURRENT_TRACE.reset(token)
            self._sink.put(self._spans(trace, scope, status))

    def _spans(self, trace: RequestTrace, scope: Scope, status: int) -> list[Span]:
        """All of one request, the outermost first."""
        now_s, answers = self._clock.now_s(), trace.answers
        attributes: Attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "http.response.status_code": status,
            "canopy.request_id": REQUEST_ID.get(),
            "gen_ai.usage.input_tokens": sum(answer.prompt_tokens for answer in answers),
            "gen_ai.usage.output_tokens": sum(len(answer.output_ids) for answer in answers),
        }
        whole = Span(
            name=f"{scope['method']} {scope['path']}",
            context=trace.context,
            parent_id=trace.parent_id,
            kind=SpanKind.SERVER,
            start_ns=self._wall.ns(trace.start_s),
            end_ns=self._wall.ns(now_s),
            attributes=attributes,
            error=_error(status, answers),
        )
        spans = [whole, self._part(trace, "tokenize", trace.start_s, trace.sent_s or now_s, {})]
        for answer in answers:
            spans += self._sequence(trace, answer, now_s)
        return spans

    def _sequence(self, trace: RequestTrace, answer: Answer, now_s: float) -> Iterator[Span]:
        """What the scheduler did with one sequence, as far as it came."""
        last = answer.last
        times = last.times if last is not None else None
        if times is None:  # it ended before the scheduler said anything of it
            yield self._part(trace, "queue", trace.sent_s, now_s, {"canopy.sequence": answer.id})
            return
        about: dict[str, str | int | float | bool] = {"canopy.sequence": answer.id}
        end_s = times.told_s if last is not None and last.finish is not None else max(answer.last_s, times.told_s)
        yield self._part(trace, "queue", times.arrived_s, times.admitted_s or end_s, about)
        if not times.admitted_s:
            return
        prompt = {"gen_ai.usage.input_tokens": answer.prompt_tokens, "canopy.cached_tokens": answer.cached_tokens}
        yield self._part(trace, "prefill", times.admitted_s, times.first_token_s or end_s, about | prompt)
        if not times.first_token_s:
            return
        output: dict[str, str | int | float | bool] = {
            "gen_ai.usage.output_tokens": len(answer.output_ids),
            "canopy.retractions": last.num_retractions if last is not None else 0,
            "canopy.finish_reason": answer.finish.kind if answer.finish is not None else "",
        }
        yield self._part(trace, "decode", times.first_token_s, end_s, about | output)

    def _part(self, trace: RequestTrace, name: str, start_s: float, end_s: float, attributes: Attributes) -> Span:
        return Span(
            name=name,
            context=trace.context.child(),
            parent_id=trace.context.span_id,
            kind=SpanKind.INTERNAL,
            start_ns=self._wall.ns(start_s),
            end_ns=self._wall.ns(max(start_s, end_s)),
            attributes=attributes,
        )


def _error(status: int, answers: Sequence[Answer]) -> str:
    """What went wrong, as far as it is not the client's request; empty: nothing."""
    for answer in answers:
        if answer.finish is not None and answer.finish.kind == "abort":
            return answer.finish.message or "aborted"
    return f"status {status}" if status >= 500 or not status else ""
