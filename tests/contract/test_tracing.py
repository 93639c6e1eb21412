"""One trace from a client through a gateway and a replica, all of them processes, to a collector over OTLP/HTTP; and
the request's id in the logs of both sides."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.gateway.test_server import ROOT
from tests.helpers.gateway_harness import CHAT
from tests.helpers.otlp_collector import otlp_collector
from tests.helpers.replica_process import replica
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = pytest.mark.observe

TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TREE = {  # span -> its parent
    "gateway POST": "client",
    "admission": "gateway POST",
    "attempt": "gateway POST",
    "worker POST": "attempt",
    "tokenize": "worker POST",
    "queue": "worker POST",
    "prefill": "worker POST",
    "decode": "worker POST",
}


async def test_one_trace_through_all_processes(tmp_path: Path) -> None:
    model = save_tiny_chat_model(tmp_path / "tiny-chat")
    flags = ("--log-format", "json")
    with (
        otlp_collector() as collector,
        replica(model, tmp_path, "--otlp-traces-endpoint", collector.url, "--log-requests", *flags) as worker,
        (tmp_path / "gateway.log").open("wb") as log,
    ):
        command = [sys.executable, "-m", "gateway", "--port", "0", "--worker-urls", worker.url, "--access-log", *flags]
        process = await asyncio.create_subprocess_exec(
            *command, "--otlp-traces-endpoint", collector.url, cwd=ROOT, stderr=log
        )
        try:
            url = await listening(tmp_path / "gateway.log")
            sent_ns = time.time_ns()
            await chat(url)
            answered_ns = time.time_ns()
            await collector.until(lambda: len(collector.of(TRACE)) == len(TREE))
        finally:
            process.terminate()
            assert await process.wait() == 0
    spans = {
        f"{span.service.removeprefix('canopy-')} POST" if span.name.startswith("POST") else span.name: span
        for span in collector.of(TRACE)
    }
    ids = {CLIENT_SPAN: "client"} | {span.id: name for name, span in spans.items()}
    assert {name: ids[span.parent] for name, span in spans.items()} == TREE
    gateway, attempt, frontend = spans["gateway POST"], spans["attempt"], spans["worker POST"]
    queue, prefill, decode = spans["queue"], spans["prefill"], spans["decode"]
    starts = [sent_ns, gateway.start_ns, attempt.start_ns, frontend.start_ns, spans["tokenize"].start_ns]
    starts += [queue.start_ns, prefill.start_ns, decode.start_ns]
    ends = [decode.end_ns, frontend.end_ns, attempt.end_ns, gateway.end_ns, answered_ns]
    assert starts == sorted(starts)
    slack_ns = 20e6  # processes that share two cores note their ends in any order
    assert all(earlier <= later + slack_ns for earlier, later in zip(ends, ends[1:], strict=False))
    assert queue.end_ns == prefill.start_ns and prefill.end_ns == decode.start_ns
    assert prefill.end_ns <= gateway.events["first token"] <= gateway.end_ns
    assert decode.attributes["gen_ai.usage.output_tokens"] == 40
    assert decode.end_ns - decode.start_ns > 10e6  # 39 steps of a real model

    gateway_lines = [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    assert [line["fields"]["status"] for line in gateway_lines if line.get("request_id") == "mine-1"] == [200]
    worker_lines = [json.loads(line) for line in worker.log.splitlines()]
    about = [line["event"] for line in worker_lines if line.get("request_id") == "mine-1"]
    assert about == ["RequestReceived", "RequestFinished"]


async def listening(log: Path) -> str:
    """The gateway's address, once it serves."""
    async with asyncio.timeout(30):
        while "listening on " not in log.read_text():
            await asyncio.sleep(0.05)
    return log.read_text().partition("listening on ")[2].partition(",")[0]


async def chat(url: str) -> None:
    """One streamed chat of 40 tokens, by a client that is traced."""
    body = {
        "messages": [{"role": "user", "content": "hello world"}],
        "stream": True,
        "max_tokens": 40,
        "ignore_eos": True,
    }
    headers = {"traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01", "x-request-id": "mine-1"}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        async with asyncio.timeout(20):
            while (await client.get("/readiness")).status_code != 200:
                await asyncio.sleep(0.05)
        answer = await client.post(CHAT, json=body, headers=headers)
        assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["x-request-id"] == "mine-1"
