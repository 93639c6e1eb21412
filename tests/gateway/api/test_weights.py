"""POST /update_weights_from_disk: to every worker of a model, each of which has nothing cached afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.api import weights
from gateway.fleet.weight_changes import WeightChanges
from tests.helpers.fake_worker import FakeWorker, Received, Reply, Script
from tests.helpers.gateway_harness import CHAT, RunningGateway, running_gateway
from tests.helpers.processes import until
from tests.helpers.story_worker import StoryTeller, request_fields, story_script, text_of, tokenize

PATH = "/update_weights_from_disk"
ASK = {"model_path": "/models/step-7", "weight_version": "7"}
STORY = "Once upon a time there was a cat."


async def updated(request: Received, reply: Reply) -> None:
    await reply.json({"success": True, "message": "New.", "num_paused_requests": 2})


async def refused(request: Received, reply: Reply) -> None:
    error = {"error": {"message": "There is no such folder.", "code": 400}}
    await reply.json({"success": False, "message": "There is no such folder.", "num_paused_requests": 0, **error}, 400)


async def test_an_update_reaches_everyone_and_empties_the_index() -> None:
    async with (
        FakeWorker(other={PATH: updated}) as a,
        FakeWorker(other={PATH: updated}) as b,
        running_gateway([a, b], policy="cache_aware") as gateway,
    ):
        for _ in range(2):
            warm = await gateway.chat("x" * 3000)
        assert "cached=0" not in warm.headers["x-canopy-route"]
        answer = await gateway.client.post(PATH, json=ASK, headers={"authorization": "Bearer k"})
        told = answer.json()
        assert (answer.status_code, told["success"], told["num_paused_requests"]) == (200, True, 4)
        assert told["message"] == "2 of 2 workers have the new weights."
        assert [worker.requests[-1].json for worker in (a, b)] == [ASK, ASK]
        assert a.requests[-1].header("authorization") == "Bearer k"
        assert "cached=0" in (await gateway.chat("x" * 3000)).headers["x-canopy-route"]


async def test_who_has_not_done_it_is_named() -> None:
    async with (
        FakeWorker(other={PATH: updated}) as a,
        FakeWorker(other={PATH: refused}) as b,
        running_gateway([a, b]) as gateway,
    ):
        answer = await gateway.client.post(PATH, json=ASK)
        told = answer.json()
        assert (answer.status_code, told["success"]) == (400, False)
        assert told["message"] == "1 of 2 workers have the new weights."
        assert told["error"]["message"] == f"Worker 127.0.0.1:{b.port}: There is no such folder."
        assert {result["url"]: result["status"] for result in told["results"]} == {a.url: 200, b.url: 400}


async def test_with_several_models_it_is_one_model_s() -> None:
    async with (
        FakeWorker(model="a", other={PATH: updated}) as a,
        FakeWorker(model="b", other={PATH: updated}) as b,
        running_gateway([a, b], model_alias=["nick=b"]) as gateway,
    ):
        unclear = await gateway.client.post(PATH, json=ASK)
        assert (unclear.status_code, unclear.json()["error"]["param"]) == (400, "model")
        unknown = await gateway.client.post(PATH, json={**ASK, "model": "c"})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
        for name in ("b", "nick"):
            answer = await gateway.client.post(PATH, json={**ASK, "model": name})
            assert (answer.status_code, [r["url"] for r in answer.json()["results"]]) == (200, [b.url])


async def test_bad_bodies_reach_nobody() -> None:
    async with FakeWorker(other={PATH: updated}) as worker, running_gateway([worker], max_body_bytes=4096) as gateway:
        for body, status, param in (
            (b"{", 400, None),
            (b"{}", 400, "model_path"),
            (b'{"model_path": 5}', 400, "model_path"),
            (b"x" * 5000, 413, None),
        ):
            answer = await gateway.client.post(PATH, content=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), body
        assert not any(request.target == PATH for request in worker.requests)


async def test_without_workers_there_is_nobody_to_ask() -> None:
    async with running_gateway([]) as gateway:
        answer = await gateway.client.post(PATH, json=ASK)
        assert (answer.status_code, answer.json()["success"]) == (503, False)


@asynccontextmanager
async def story_tellers(dying_s: Script, alive_s: Script) -> AsyncIterator[tuple[RunningGateway, FakeWorker]]:
    """A gateway that resumes streams; a worker that dies in the middle of each story, and one that tells it whole,
    which is yielded too. `dying_s`, `alive_s`: what they say to an update."""
    dying = FakeWorker(
        story_script(StoryTeller(STORY), lambda: 402), other={PATH: dying_s, "/tokenize": tokenize}, incarnation="d"
    )
    alive = FakeWorker(
        story_script(StoryTeller(STORY), lambda: None), other={PATH: alive_s, "/tokenize": tokenize}, incarnation="a"
    )
    async with dying, alive, running_gateway([dying, alive], resume_streams=True, policy="least_load") as gateway:
        yield gateway, alive


async def told_by(gateway: RunningGateway) -> str:
    """The story, as a client gets it that comes to the worker that dies."""
    answer = await gateway.client.post(CHAT, content=json.dumps(request_fields(True, max_tokens=30)))
    return "broken" if '"error"' in answer.text else text_of(answer.content)


async def test_a_stream_goes_on_elsewhere_only_by_the_weights_it_began_with() -> None:
    marks = []

    async def watched(request: Received, reply: Reply) -> None:
        marks.append(gateway.gateway.registry.weight_changes.mark())
        await updated(request, reply)

    async with story_tellers(watched, watched) as (gateway, _):
        assert await told_by(gateway) == STORY
        gateway.gateway.registry.weight_changes.begin()
        assert await told_by(gateway) == "broken"
        gateway.gateway.registry.weight_changes.end()
        assert await told_by(gateway) == STORY
        assert (await gateway.client.post(PATH, json=ASK)).status_code == 200
        assert marks == [None, None]
        assert await told_by(gateway) == STORY


async def test_a_stream_does_not_go_on_where_the_update_failed() -> None:
    async with story_tellers(updated, refused) as (gateway, alive):
        assert await told_by(gateway) == STORY
        assert (await gateway.client.post(PATH, json=ASK)).status_code == 400
        assert await told_by(gateway) == "broken"
        alive.other[PATH] = updated
        assert (await gateway.client.post(PATH, json=ASK)).status_code == 200
        assert await told_by(gateway) == STORY


async def test_a_stream_does_not_go_on_where_nobody_knows_of_the_update() -> None:
    async def cut(request: Received, reply: Reply) -> None:
        reply.cut()

    async with story_tellers(cut, refused) as (gateway, _):
        assert await told_by(gateway) == STORY
        answer = await gateway.client.post(PATH, json=ASK)
        assert (answer.status_code, answer.json()["success"]) == (502, False)
        assert await told_by(gateway) == "broken"


async def test_who_may_take_longer_to_end_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(request: Received, reply: Reply) -> None:
        await asyncio.sleep(0.4)
        await updated(request, reply)

    monkeypatch.setattr(weights, "TIMEOUT_S", 0.1)
    async with FakeWorker(other={PATH: slowly}) as worker, running_gateway([worker]) as gateway:
        assert (await gateway.client.post(PATH, json=ASK)).status_code == 502
        for seconds in (30.0, 1e300):  # the latter is the worker's to refuse
            assert (await gateway.client.post(PATH, json={**ASK, "drain_timeout_s": seconds})).status_code == 200


async def test_a_stream_does_not_go_on_at_a_process_that_started_after_the_update() -> None:
    async with story_tellers(updated, updated) as (gateway, alive):
        assert (await gateway.client.post(PATH, json=ASK)).status_code == 200
        assert await told_by(gateway) == STORY
        alive.incarnation = "another"  # with the weights of its --model-path
        gateway.gateway.health.suspect(alive.url)
        registry = gateway.gateway.registry
        await until(lambda: "another" in [w.identity.incarnation for w in registry.snapshot.workers], 5, "it is known")
        assert await told_by(gateway) == "broken"


def test_weights_are_the_same_only_outside_of_updates() -> None:
    changes = WeightChanges()
    before = changes.mark()
    assert changes.same_since(before)
    changes.begin()
    during = changes.mark()
    changes.begin()
    changes.end()
    assert changes.mark() is None
    changes.end()
    assert not changes.same_since(before) and not changes.same_since(during)
    assert changes.same_since(changes.mark())
    changes.end()  # of an update whose beginning nobody here has heard of
    assert changes.mark() is not None
