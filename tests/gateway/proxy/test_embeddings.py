"""Requests for embeddings through the gateway: whole, by load, counted, and within its limits; over both data paths."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.helpers.fake_worker import MODEL, FakeWorker, Received, Reply
from tests.helpers.gateway_harness import running_gateway
from tests.helpers.processes import until

PATHS = ("/v1/embeddings", "/encode")
USAGE = {"prompt_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 3}}


async def embed(request: Received, reply: Reply) -> None:
    await reply.json({"object": "list", "data": [{"echo": request.json}], "usage": USAGE})


def embedder() -> FakeWorker:
    return FakeWorker(other=dict.fromkeys(PATHS, embed))


def body(text: Any = "a text", model: str = MODEL) -> bytes:
    return json.dumps({"model": model, "input": text}).encode()


async def test_bodies_reach_a_worker_as_they_are(fast_path: bool) -> None:
    async with embedder() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        for path in PATHS:
            for text in ("a text", ["a", "b"], [5, 6], [[5], [6, 7]]):
                answer = await gateway.client.post(path, content=body(text))
                assert answer.status_code == 200 and answer.json()["data"][0]["echo"]["input"] == text
            assert gateway.metric("requests_total", endpoint=path, status="200") == 4
        assert gateway.metric("prompt_tokens_total") == 8 * 7
        assert gateway.metric("cached_tokens_total") == 8 * 3
        assert gateway.inflight == 0


async def test_equal_texts_are_spread_by_load(fast_path: bool) -> None:
    """A generation would go where its prefix is; these do not care."""
    async with embedder() as one, embedder() as two:
        async with running_gateway([one, two], fast_path=fast_path, policy="cache_aware") as gateway:
            for _ in range(16):
                assert (await gateway.client.post(PATHS[0], content=body("x" * 4000))).status_code == 200
        assert min(len(one.requests), len(two.requests)) >= 3


async def test_what_is_refused(fast_path: bool) -> None:
    async with embedder() as worker, running_gateway([worker], fast_path=fast_path, max_body_bytes=1024) as gateway:
        assert (await gateway.client.post(PATHS[0], content=body(model="other"))).status_code == 404
        assert (await gateway.client.post(PATHS[0], content=b"[")).status_code == 400
        assert (await gateway.client.post(PATHS[0], content=body("x" * 1500))).status_code == 413
        assert (await gateway.client.get(PATHS[0])).status_code in (404, 405)
        assert worker.requests == []


async def test_they_count_towards_the_bounds_on_requests(fast_path: bool) -> None:
    go_on = asyncio.Event()

    async def slowly(request: Received, reply: Reply) -> None:
        await go_on.wait()
        await embed(request, reply)

    settings: dict[str, Any] = {"max_concurrent_requests": 1, "queue_size": 0}
    worker = FakeWorker(other=dict.fromkeys(PATHS, slowly))
    async with worker, running_gateway([worker], fast_path=fast_path, **settings) as gateway:
        first = asyncio.create_task(gateway.client.post(PATHS[0], content=body()))
        await until(lambda: gateway.inflight == 1, 5, "the first is with the worker")
        assert (await gateway.client.post(PATHS[0], content=body())).status_code == 503
        go_on.set()
        assert (await first).status_code == 200
