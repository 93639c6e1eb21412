"""What the gateway relies on in a worker: its names, numbers, streams, faults, and that it stops when left."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.helpers.gateway_harness import CHAT, RunningGateway
from tests.helpers.processes import until
from tests.helpers.replica_process import ReplicaProcess

MODEL = "tiny-chat"


def body(*, max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "hello hello world"}]
    return {"model": MODEL, "messages": question, "max_tokens": max_tokens, "ignore_eos": True, **fields}


async def test_the_gateway_learns_who_a_worker_is(gateway: RunningGateway, replicas: list[ReplicaProcess]) -> None:
    described = (await gateway.client.get("/workers")).json()["workers"]
    for worker, process in zip(described, replicas, strict=True):
        for name in ("model", "incarnation", "max_running_requests"):
            assert worker[name] == process.info[name]
        assert worker["max_total_tokens"] == process.info["max_total_num_tokens"]


async def test_the_gateway_reads_a_worker_s_load(gateway: RunningGateway, replicas: list[ReplicaProcess]) -> None:
    async def load() -> dict[str, Any]:
        workers = (await gateway.client.get("/workers")).json()["workers"]
        return next(dict(w["load"]) for w in workers if w["load"] is not None and w["url"] == replicas[0].url)

    url = f"{replicas[0].url}{CHAT}"
    async with httpx.AsyncClient(timeout=30, trust_env=False) as direct:
        running = asyncio.create_task(direct.post(url, json=body(max_tokens=2000)))
        deadline = asyncio.get_running_loop().time() + 10
        while (await load())["running_requests"] != 1:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        seen = await load()
        running.cancel()
    assert seen["max_total_tokens"] == replicas[0].info["max_total_num_tokens"]
    assert 0 < seen["used_tokens"] <= seen["max_total_tokens"]


async def test_requests_spread_over_both_and_keep_their_ids(gateway: RunningGateway) -> None:
    for number in range(4):
        answer = await gateway.client.post(CHAT, json=body(), headers={"x-request-id": f"mine-{number}"})
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == f"mine-{number}"
        assert answer.json()["usage"]["completion_tokens"] == 4
    sent = [w["requests_sent"] for w in (await gateway.client.get("/workers")).json()["workers"]]
    assert sent == [2, 2]


async def test_a_stream_arrives_whole_and_equals_the_answer(gateway: RunningGateway) -> None:
    greedy = body(max_tokens=40, temperature=0)
    whole = (await gateway.client.post(CHAT, json=greedy)).json()["choices"][0]["message"]["content"]
    stream = {**greedy, "stream": True, "stream_options": {"include_usage": True}}
    text = (await gateway.client.post(CHAT, json=stream)).text
    *events, done = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == whole
    assert chunks[-1]["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": 0}, "max_tokens", 400),
        ({"temperature": -1}, "temperature", 400),
        ({"messages": []}, "messages", 400),
        ({"messages": [{"role": "user", "content": "a" * 20000}]}, "messages", "context_length_exceeded"),
    ],
)
async def test_a_worker_s_refusal_comes_through_unchanged(
    gateway: RunningGateway, replicas: list[ReplicaProcess], fields: dict[str, Any], param: str, code: int | str
) -> None:
    request = body() | fields
    answer = await gateway.client.post(CHAT, json=request)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    async with httpx.AsyncClient(trust_env=False) as direct:
        assert error == (await direct.post(f"{replicas[0].url}{CHAT}", json=request)).json()["error"]


async def test_an_unknown_model_is_refused_alike(gateway: RunningGateway, replicas: list[ReplicaProcess]) -> None:
    request = body() | {"model": "another"}
    answer = await gateway.client.post(CHAT, json=request)
    async with httpx.AsyncClient(trust_env=False) as direct:
        refused = await direct.post(f"{replicas[0].url}{CHAT}", json=request)
    assert answer.status_code == refused.status_code == 404
    for error in (answer.json()["error"], refused.json()["error"]):
        assert (error["param"], error["type"]) == ("model", "not_found_error")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_worker(
    gateway: RunningGateway, replicas: list[ReplicaProcess], stream: bool
) -> None:
    asking = asyncio.create_task(gateway.client.post(CHAT, json=body(max_tokens=3000, stream=stream)))
    await until(lambda: gateway.inflight == 1, 5, "it is under way")
    await until(lambda: any(r.load()["num_running_reqs"] for r in replicas), 10, "it runs")
    asking.cancel()
    await until(
        lambda: gateway.inflight == 0 and all(r.is_clean() for r in replicas), 2, "nothing runs, pools are whole"
    )


async def test_an_abort_by_id_reaches_the_worker_that_has_it(
    gateway: RunningGateway, replicas: list[ReplicaProcess]
) -> None:
    """The others are asked too, and do not mind an id they do not know."""
    asking = asyncio.create_task(gateway.client.post(CHAT, json=body(max_tokens=3000, rid="mine")))
    await until(lambda: any(r.load()["num_running_reqs"] for r in replicas), 10, "it runs")
    aborted = await gateway.client.post("/abort_request", json={"rid": "mine"})
    assert aborted.status_code == 200
    answer = await asyncio.wait_for(asking, 5)
    assert answer.status_code == 400 and "abort" in answer.json()["error"]["message"]
    await until(lambda: gateway.inflight == 0 and all(r.is_clean() for r in replicas), 2, "nothing runs")
