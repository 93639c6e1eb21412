"""The gateway's spans: their tree, their times, and what travels to the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.tracing.context import parse_traceparent
from tests.helpers.fake_worker import FakeWorker, Received, Reply, answer
from tests.helpers.gateway_harness import CHAT, chat_body, running_gateway
from tests.helpers.otlp_collector import Collector, otlp_collector

TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FROM_CLIENT = f"00-{TRACE}-{CLIENT_SPAN}-01"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    with otlp_collector() as listening:
        yield listening


async def slow(request: Received, reply: Reply) -> None:
    await asyncio.sleep(0.05)
    await answer(request, reply)


@pytest.mark.parametrize("fast_path", [True, False])
async def test_a_client_s_trace_goes_on_to_the_worker(collector: Collector, fast_path: bool) -> None:
    settings = {"otlp_traces_endpoint": collector.url, "fast_path": fast_path, "worker_api_key": "w"}
    async with FakeWorker(slow) as worker, running_gateway([worker], **settings) as gateway:
        for _ in range(2):  # the second time its head is known
            headers = {"traceparent": FROM_CLIENT, "tracestate": "vendor=1", "x-request-id": "mine"}
            await gateway.client.post(CHAT, content=chat_body(stream=True), headers=headers)
        await collector.until(lambda: len(collector.of(TRACE)) == 6)
        for request, (whole, admission, attempt) in zip(
            worker.requests, (collector.of(TRACE)[:3], collector.of(TRACE)[3:]), strict=True
        ):
            assert (whole.name, whole.parent, whole.service) == (f"POST {CHAT}", CLIENT_SPAN, "canopy-gateway")
            assert {admission.name: admission.parent, attempt.name: attempt.parent} == dict.fromkeys(
                ("admission", "attempt"), whole.id
            )
            forwarded = [value for name, value in request.headers if name == "traceparent"]
            assert forwarded == [f"00-{TRACE}-{attempt.id}-01"]
            assert request.header("tracestate") == "vendor=1" and request.header("authorization") == "Bearer w"
            assert whole.start_ns == admission.start_ns <= admission.end_ns <= attempt.start_ns + 1
            assert attempt.start_ns + 45e6 < whole.events["first token"] <= attempt.end_ns <= whole.end_ns
            assert whole.attributes["canopy.request_id"] == "mine"
            assert whole.attributes["http.response.status_code"] == 200
            assert attempt.attributes["canopy.route.reason"] == "round_robin"
            assert attempt.attributes["server.address"] == f"127.0.0.1:{worker.port}"


async def test_each_attempt_is_a_span_and_a_parent(collector: Collector) -> None:
    async def refuse(request: Received, reply: Reply) -> None:
        await reply.json({}, 503)

    async with (
        FakeWorker(refuse) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], otlp_traces_endpoint=collector.url) as gateway,
    ):
        assert (await gateway.client.post(CHAT, content=chat_body(), headers={"traceparent": FROM_CLIENT})).is_success
        await collector.until(lambda: len(collector.of(TRACE)) == 4)
        first, second = [span for span in collector.of(TRACE) if span.name == "attempt"]
        assert (first.error, second.error) == ("status_503", "")
        assert first.end_ns <= second.start_ns + 1
        parents = [parse_traceparent(w.requests[0].header("traceparent") or "") for w in (bad, good)]
        assert [f"{p.span_id:016x}" for p in parents if p is not None] == [first.id, second.id]


async def test_a_client_that_does_not_want_a_trace_gets_none(collector: Collector) -> None:
    async with FakeWorker() as worker, running_gateway([worker], otlp_traces_endpoint=collector.url) as gateway:
        await gateway.chat(traceparent=FROM_CLIENT[:-2] + "00")
        await gateway.chat()
        await collector.until(lambda: bool(collector.spans))
        assert not collector.of(TRACE)
        unsampled, own = [parse_traceparent(r.header("traceparent") or "") for r in worker.requests]
        assert unsampled is not None and not unsampled.sampled and f"{unsampled.trace_id:032x}" == TRACE
        assert own is not None and own.sampled
        (root,) = [span for span in collector.spans if not span.parent]
        assert root.trace == f"{own.trace_id:032x}"


async def test_what_ends_without_a_worker_is_a_span_too(collector: Collector) -> None:
    async with running_gateway([], otlp_traces_endpoint=collector.url, trace_sample_ratio=1) as gateway:
        assert (await gateway.chat(traceparent=FROM_CLIENT)).status_code == 503
        await collector.until(lambda: len(collector.of(TRACE)) == 2)
        assert collector.of(TRACE)[0].error == "status 503"


async def test_off_the_client_s_header_goes_through_and_nobody_looks_on() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        await gateway.chat(traceparent=FROM_CLIENT)
        assert worker.requests[0].header("traceparent") == FROM_CLIENT
        assert gateway.gateway.forwarder.observers == () and gateway.gateway.traces is None
