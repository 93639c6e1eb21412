"""Small parts of the data path by themselves: events, usage, access log, the fast path's self-check."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import build
from gateway.config import GatewaySettings
from gateway.proxy import accelerate as module
from gateway.proxy.accelerate import accelerate
from gateway.proxy.access_log import AccessLog
from gateway.proxy.fetch import Fetcher, FetchError
from gateway.proxy.forwarder import ConnectionPools
from gateway.proxy.sse import EventGate, error_event
from gateway.proxy.upstream import FailureKind
from gateway.proxy.usage import find_usage
from tests.helpers.clock import FakeClock
from tests.helpers.fake_worker import FakeWorker, Received, Reply

lines = st.sampled_from([b"data: a\n\n", b"data: {}\r\n\r\n", b": ping\n\n", b"data: two\ndata: lines\n\n", b"partial"])


@settings(deadline=None)
@given(st.lists(lines, max_size=6), st.lists(st.integers(0, 100), max_size=6))
def test_gate_lets_whole_events_pass_and_loses_nothing(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    gate, out = EventGate(), b""
    for start, end in zip(bounds, bounds[1:], strict=False):
        passed = gate.feed(text[start:end])
        out += text[start:end] if passed is None else passed
        assert not out or out.endswith((b"\n\n", b"\r\n\r\n"))
        assert text.startswith(out)
    assert out + gate.rest() == text
    assert gate.rest() == b""


def test_gate_does_not_hold_without_bound() -> None:
    gate = EventGate()
    assert gate.feed(b"x" * 2**19) == b""
    assert gate.feed(b"x" * 2**19 + b"y") == b"x" * 2**20 + b"y"


def test_error_events() -> None:
    text = error_event(502, 'It "broke".\n', "worker_failed")
    assert text.startswith(b"data: ") and text.endswith(b"\n\n") and text.count(b"\n") == 2
    error = json.loads(text.removeprefix(b"data: "))["error"]
    assert error == {"message": 'It "broke".\n', "type": "server_error", "param": None, "code": "worker_failed"}
    name, data, *_ = error_event(502, "It broke.", "worker_failed", "/v1/messages").split(b"\n")
    assert name == b"event: error"
    told = {"type": "error", "error": {"type": "api_error", "message": "It broke."}}
    assert json.loads(data.removeprefix(b"data: ")) == told


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}, (9, 4, 0)),
        ({"meta_info": {"cached_tokens": 0, "prompt_tokens": 7, "completion_tokens": 5}}, (7, 0, 5)),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, None),
        ({"usage": None}, None),
        ({"text": '"cached_tokens": 5, "prompt_tokens": 6'}, None),
    ],
)
def test_usage(fields: dict[str, Any], usage: tuple[int, int, int] | None) -> None:
    for separators in ((",", ":"), (", ", ": ")):
        assert find_usage(b"data: " + json.dumps(fields, separators=separators).encode()) == usage


def test_access_log_writes_in_batches(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(enabled=True)
    with caplog.at_level(logging.INFO, "gateway.access"):
        for number in range(3):
            log.add(b"id%d" % number, "/generate", 200, "w1" if number else "", "prefix", 0.5)
        assert not caplog.records
        log.flush()
        log.flush()
    (record,) = caplog.records
    assert record.getMessage().split("\n")[:2] == [
        "id0 /generate 200 - prefix 0.500s",
        "id1 /generate 200 w1 prefix 0.500s",
    ]


async def test_fast_path_is_off_under_an_unknown_uvicorn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = build(GatewaySettings())
    assert accelerate(gateway.forwarder, max_body_bytes=1000) is not None
    assert not caplog.records
    monkeypatch.setattr(module.uvicorn, "__version__", "0.99.0")
    assert accelerate(gateway.forwarder, max_body_bytes=1000) is None
    assert "0.99.0" in caplog.text


@pytest.mark.parametrize(
    "broken", ["on_message_begin", "on_headers_complete", "on_body", "on_header", "on_message_complete"]
)
async def test_fast_path_is_off_when_uvicorn_behaves_differently(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def changed(self: object, *args: object) -> None:
        pass

    monkeypatch.setattr(module.HotProtocol, broken, changed)
    assert accelerate(build(GatewaySettings()).forwarder, max_body_bytes=1000) is None
    assert "self-check" in caplog.text


async def test_fetch_tells_why_it_failed() -> None:
    async def hang(request: Received, reply: Reply) -> None:
        await asyncio.sleep(60)

    async def huge(request: Received, reply: Reply) -> None:
        await reply.head(content_length="99999999")
        await reply.raw(b"x" * 20_000_000)

    async def cut(request: Received, reply: Reply) -> None:
        reply.cut()

    pools = ConnectionPools(FakeClock(), keep_alive_s=4, max_idle=4)
    fetcher = Fetcher(pools)
    async with FakeWorker(other={"/hang": hang, "/huge": huge, "/cut": cut}) as worker:
        assert (await fetcher.fetch(worker.url, "/health", timeout_s=2)).status == 200
        for path, kind in (
            ("/hang", FailureKind.TIMEOUT),
            ("/huge", FailureKind.GARBAGE),
            ("/cut", FailureKind.CLOSED),
        ):
            with pytest.raises(FetchError) as caught:
                await fetcher.fetch(worker.url, path, timeout_s=0.3 if path == "/hang" else 5)
            assert caught.value.failure.kind is kind
        assert (await fetcher.fetch(worker.url, "/health", timeout_s=2)).status == 200
        worker.requests_per_connection = 0
    with pytest.raises(FetchError) as caught:
        await fetcher.fetch(worker.url, "/health", timeout_s=2)
    assert caught.value.failure.kind is FailureKind.REFUSED
    pools.close()


async def test_d_works_under_any_asgi_server() -> None:
    """The reference path without uvicorn: httpx drives the ASGI callable directly."""
    async with FakeWorker() as worker:
        gateway = build(GatewaySettings(worker_urls=[worker.url]))
        transport = httpx.ASGITransport(app=gateway.asgi)
        async with (
            gateway.running(pytest.fail),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            async with asyncio.timeout(5):
                while (await client.get("/readiness")).status_code != 200:
                    await asyncio.sleep(0.01)
            answer = await client.post("/v1/chat/completions", json={"model": "fake-model", "messages": []})
            assert answer.json()["choices"][0]["message"]["content"] == "hello"
