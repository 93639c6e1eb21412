"""The replica's spans: which there are, whose children, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common.tracing.spans import Span
from tests.helpers.replica_app import serving
from worker.server.tokenizer import Tokenizer

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Spans(list[Span]):
    """A SpanSink."""

    def put(self, spans: Sequence[Span]) -> None:
        self.extend(spans)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_and_what_the_scheduler_did(tokenizer: Tokenizer, stream: bool) -> None:
    spans = Spans()
    async with serving(tokenizer, traces=spans) as app:
        headers = {"traceparent": TRACEPARENT, "x-request-id": "mine"}
        body = {"prompt": "the answer", "stream": stream, "rid": "r1"}
        assert (await app.client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    whole, tokenize, queue, prefill, decode = spans
    assert [span.name for span in spans] == ["POST /v1/completions", "tokenize", "queue", "prefill", "decode"]
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent_id:016x}") == tuple(TRACEPARENT.split("-")[1:3])
    assert {span.parent_id for span in spans[1:]} == {whole.context.span_id}
    assert len({span.context.span_id for span in spans}) == 5
    assert whole.start_ns == tokenize.start_ns <= tokenize.end_ns <= queue.start_ns + 1000
    assert queue.end_ns == prefill.start_ns and prefill.end_ns == decode.start_ns <= decode.end_ns
    assert 0.9e6 < queue.end_ns - queue.start_ns < 1.1e6  # what the scheduler said
    assert whole.attributes["canopy.request_id"] == "mine" and not whole.error
    assert decode.attributes["canopy.finish_reason"] == "stop" and decode.attributes["canopy.sequence"] == "r1"


async def test_each_sequence_has_its_own(tokenizer: Tokenizer) -> None:
    spans = Spans()
    async with serving(tokenizer, traces=spans) as app:
        assert (await app.post("/v1/completions", prompt=["a", "b"], n=2)).status_code == 200
    assert [span.name for span in spans].count("decode") == 4
    assert len({span.attributes["canopy.sequence"] for span in spans if span.name == "decode"}) == 4
    assert spans[0].parent_id == 0


async def test_faults_and_requests_without_sequences(tokenizer: Tokenizer) -> None:
    spans = Spans()
    async with serving(tokenizer, traces=spans, trace_sample_ratio=1) as app:
        assert (await app.post("/v1/completions", prompt=1.5)).status_code == 400
        assert (await app.client.get("/v1/models")).status_code == 200
        app.scheduler.max_waiting = 0
        assert (await app.post("/v1/completions", prompt="full")).status_code == 503
    refused, _, full, _, queue = spans
    assert (refused.error, refused.attributes["http.response.status_code"]) == ("", 400)
    assert (full.error, queue.name) == ("The request queue is full.", "queue")


async def test_who_is_not_traced_costs_the_scheduler_nothing(tokenizer: Tokenizer) -> None:
    spans = Spans()
    async with serving(tokenizer, traces=spans, trace_sample_ratio=0) as app:
        unsampled = {"traceparent": TRACEPARENT[:-1] + "0"}
        await app.client.post("/v1/completions", json={"prompt": "a"}, headers=unsampled)
        await app.post("/v1/completions", prompt="a")
        await app.client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": TRACEPARENT})
        assert [request.traced for request in app.scheduler.requests] == [False, False, True]
    assert len(spans) == 5
