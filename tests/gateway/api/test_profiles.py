"""POST /start_profile and /stop_profile of the gateway: to every worker, whose answers say where the files are."""

from __future__ import annotations

import json

import pytest

from tests.helpers.fake_worker import FakeWorker, Received, Reply
from tests.helpers.gateway_harness import running_gateway


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
async def test_every_worker_is_asked(path: str) -> None:
    async def told(request: Received, reply: Reply) -> None:
        await reply.json({"status": "ok", "path": "/tmp/one.trace.json.gz"})

    async def refused(request: Received, reply: Reply) -> None:
        await reply.json({"error": {"message": "Not now.", "code": 400}}, 400)

    async with (
        FakeWorker(other={path: told}) as a,
        FakeWorker(other={path: told}) as b,
        running_gateway([a, b]) as gateway,
    ):
        answer = await gateway.client.post(path, json={"num_steps": 3}, headers={"authorization": "Bearer k"})
        results = answer.json()["results"]
        assert [json.loads(result["message"])["path"] for result in results] == ["/tmp/one.trace.json.gz"] * 2
        for worker in (a, b):
            asked = worker.requests[-1]
            assert (asked.header("authorization"), json.loads(asked.body)) == ("Bearer k", {"num_steps": 3})
        b.other[path] = refused
        answer = await gateway.client.post(path)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"Worker 127.0.0.1:{b.port}: Not now."
