"""POST /route/explain: says what would happen, and changes nothing; the route header and metrics say what did."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.fake_worker import FakeWorker, Received, Reply
from tests.helpers.gateway_harness import chat_body, running_gateway

LONG = "tell me more. " * 300


async def test_a_dry_run_is_what_then_happens() -> None:
    async with FakeWorker() as a, FakeWorker() as b, running_gateway([a, b], policy="cache_aware") as gateway:

        async def explain() -> dict[str, Any]:
            answer = await gateway.client.post("/route/explain", content=chat_body(LONG))
            assert answer.status_code == 200
            found: dict[str, Any] = answer.json()
            return found

        fresh = await explain()
        assert await explain() == fresh
        assert (fresh["policy"], fresh["model"]) == ("cache_aware", "fake-model")
        assert fresh["chosen"]["reason"] == "spread" and fresh["chosen"]["predicted_cached_tokens"] == 0
        assert fresh["prompt"]["bytes"] > len(LONG)
        assert not a.requests and not b.requests

        route = (await gateway.chat(LONG)).headers["x-canopy-route"]
        assert f"worker={fresh['chosen']['worker']}" in route

        again = await explain()
        assert again["chosen"]["worker"] == fresh["chosen"]["worker"]
        assert (again["chosen"]["reason"], again["runner_up"]["reason"]) == ("prefix", "spread")
        assert again["chosen"]["predicted_cached_tokens"] > 900
        assert again["chosen"]["price_s"] < again["runner_up"]["price_s"]
        assert sum(again["chosen"]["price_parts_s"].values()) == again["chosen"]["price_s"]
        assert again["runner_up"] == again["candidates"][1]
        assert again["chosen"]["load"] == {"requests": 0, "in_flight": 0, "waiting_prefill_tokens": 0}


async def test_workers_that_are_no_candidates_are_named_with_why() -> None:
    async with FakeWorker() as a, FakeWorker() as b, running_gateway([a, b]) as gateway:
        gateway.gateway.registry.degrade(b.url, "3 missed probes")
        answer = (await gateway.client.post("/route/explain", content=chat_body())).json()
        assert answer["runner_up"] is None
        (outsider,) = answer["not_considered"]
        assert (outsider["url"], outsider["status"], outsider["why"]) == (b.url, "degraded", "3 missed probes")


async def test_faults_are_those_of_the_request() -> None:
    async with FakeWorker() as worker, running_gateway([worker], max_body_bytes=2000) as gateway:
        post = gateway.client.post
        assert (await post("/route/explain", content=b"{")).status_code == 400
        assert (await post("/route/explain", content=chat_body("x" * 3000))).status_code == 413
        unknown = await post("/route/explain", content=chat_body(model="other"))
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
        headers = {"x-canopy-target-worker": "nobody"}
        missing = await post("/route/explain", content=chat_body(), headers=headers)
        assert (missing.status_code, missing.json()["error"]["code"]) == (503, "target_not_ready")


async def test_the_target_header_chooses_the_worker() -> None:
    async with FakeWorker() as a, FakeWorker() as b, running_gateway([a, b]) as gateway:
        for position, worker in enumerate((a, b)):
            answer = await gateway.chat(**{"x-smg-target-worker": str(position)})
            assert f"worker={worker.url.partition('://')[2]};" in answer.headers["x-canopy-route"]


@pytest.mark.parametrize(("cached", "direction"), [(0, "over"), (1090, "under")])
async def test_prediction_error_is_a_metric(cached: int, direction: str) -> None:
    async def answer(request: Received, reply: Reply) -> None:
        details = {"cached_tokens": cached if len(worker.requests) > 1 else 0}
        prompt_tokens = 1050 if len(worker.requests) == 1 else 1100
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 1, "prompt_tokens_details": details}
        await reply.json({"choices": [], "usage": usage})

    async with FakeWorker(answer) as worker, running_gateway([worker], policy="cache_aware") as gateway:
        await gateway.chat(LONG)
        route = (await gateway.chat(LONG + "x" * 100)).headers["x-canopy-route"]
        predicted = int(route.rpartition("cached=")[2])
        assert 900 < predicted < 1100
        assert gateway.metric("prediction_error_tokens_total", direction=direction) == abs(predicted - cached)
        other = {"over": "under", "under": "over"}[direction]
        assert gateway.metric("prediction_error_tokens_total", direction=other) == 0


async def test_the_shadow_policy_is_a_metric() -> None:
    workers = [FakeWorker(), FakeWorker()]
    async with (
        workers[0],
        workers[1],
        running_gateway(workers, policy="round_robin", shadow_policy="cache_aware") as gateway,
    ):
        for _ in range(4):
            await gateway.chat(LONG)
        tokens = gateway.metric("modelled_prompt_tokens_total")
        acting = gateway.metric("modelled_cached_tokens_total", policy="round_robin", role="acting")
        shadow = gateway.metric("modelled_cached_tokens_total", policy="cache_aware", role="shadow")
        assert gateway.metric("shadow_choices_total") == 4
        assert acting == pytest.approx(tokens / 2, rel=0.03)
        assert shadow == pytest.approx(tokens * 3 / 4, rel=0.03)
        assert gateway.metric("shadow_agreements_total") == 2
