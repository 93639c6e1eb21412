"""--resume-streams through a whole gateway, over workers that die in the middle of their story."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.helpers.fake_worker import FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import CHAT, RunningGateway, request_bytes, running_gateway
from tests.helpers.processes import until
from tests.helpers.story_worker import (
    StoryTeller,
    request_fields,
    story_script,
    text_of,
    tokenize,
    usage_of,
)

STORY = "Once upon\n\n a time été there  was 你好 a cat."
COMPLETIONS = "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}


def teller_worker(name: str, deaths: list[int | None]) -> FakeWorker:
    """Dies after these numbers of bytes, one per request; afterwards not at all."""
    script = story_script(StoryTeller(STORY, name=name), lambda: deaths.pop(0) if deaths else None)
    return FakeWorker(script, other={"/tokenize": tokenize})


async def post(gateway: RunningGateway, fields: dict[str, Any]) -> bytes:
    """The whole stream."""
    client = await gateway.raw()
    path = CHAT if "messages" in fields else COMPLETIONS
    await client.send(request_bytes(json.dumps(fields).encode(), path, "authorization: Bearer k"))
    status, _, body = await client.response()
    assert status == 200
    client.close()
    return body


def generations(worker: FakeWorker) -> list[Received]:
    return [request for request in worker.requests if request.target in (CHAT, COMPLETIONS)]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("deaths", [[0], [1], [130], [333], [801], [402, 200]])
async def test_a_stream_goes_on_elsewhere(fast_path: bool, chat: bool, deaths: list[int]) -> None:
    fields = request_fields(chat, max_tokens=9, **USAGE)
    workers = [teller_worker(f"w{number}", [death] * 9) for number, death in enumerate(deaths)]
    workers.append(teller_worker("last", []))
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        gateway = await stack.enter_async_context(
            running_gateway(workers, fast_path=fast_path, resume_streams=True, policy="least_load")
        )
        body = await post(gateway, fields)  # idle workers are asked in order
        assert [len(generations(worker)) for worker in workers] == [1] * len(workers)
        expected = b"".join(StoryTeller(STORY).answer(fields))
        assert text_of(body) == text_of(expected)
        assert usage_of(body) == usage_of(expected)
        assert gateway.metric("retries_total", cause="resume") == len(deaths)
        assert gateway.metric("upstream_errors_total", kind="cut") == len(deaths)
        assert gateway.metric("requests_total", endpoint=CHAT if chat else COMPLETIONS, status="200") == 1
        assert gateway.inflight == 0
        loads = [worker.load for worker in gateway.gateway.registry.snapshot.workers]
        assert [(load.inflight, load.pending_tokens) for load in loads] == [(0, 0)] * len(loads)


async def test_the_next_worker_is_given_the_text_so_far(fast_path: bool) -> None:
    dead, alive = teller_worker("a", [402]), teller_worker("b", [])
    async with dead, alive, running_gateway([dead, alive], fast_path=fast_path, resume_streams=True) as gateway:
        while not generations(dead):
            text = text_of(await post(gateway, request_fields(True, temperature=0, max_tokens=30)))
            assert text == STORY
        given = generations(alive)[-1].json
        assert STORY.startswith(given["messages"][-1]["content"]) and given["messages"][-1]["content"]
        assert given["max_tokens"] == 30 - len(given["messages"][-1]["content"].split())
        assert given["temperature"] == 0
        assert [request.target for request in alive.requests if request.header("authorization") != "Bearer k"] == []


async def test_it_is_off_by_default(fast_path: bool) -> None:
    dead, alive = teller_worker("a", [402] * 9), teller_worker("b", [])
    async with dead, alive, running_gateway([dead, alive], fast_path=fast_path) as gateway:
        bodies = [await post(gateway, request_fields(True)) for _ in range(2)]
        assert sum(b'"worker_failed"' in body for body in bodies) == 1


async def test_where_nobody_is_left_the_stream_breaks_off(fast_path: bool) -> None:
    async with (
        teller_worker("a", [402]) as worker,
        running_gateway([worker], fast_path=fast_path, resume_streams=True) as gateway,
    ):
        body = await post(gateway, request_fields(True))
        *events, last, rest = body.split(b"\n\n")
        assert rest == b"" and json.loads(last.removeprefix(b"data: "))["error"]["code"] == "worker_failed"
        assert b"[DONE]" not in body and len(events) == 2
        assert gateway.inflight == 0


async def test_what_cannot_be_replayed_breaks_off(fast_path: bool) -> None:
    dead, alive = teller_worker("a", [402] * 9), teller_worker("b", [])
    async with dead, alive, running_gateway([dead, alive], fast_path=fast_path, resume_streams=True) as gateway:
        bodies = [await post(gateway, request_fields(True, seed=1)) for _ in range(2)]
        assert sum(b'"worker_failed"' in body for body in bodies) == 1
        assert gateway.metric("retries_total", cause="resume") == 0


@pytest.mark.parametrize(("status", "goes_on"), [(429, True), (500, True), (400, False)])
async def test_a_refusal_of_the_next_worker(fast_path: bool, status: int, goes_on: bool) -> None:
    """Back-pressure and faults lead to a third worker, its objection to the request does not."""

    async def refuses(request: Received, reply: Reply) -> None:
        await reply.json({"error": {"message": "no"}}, status)

    first, third = teller_worker("a", [402] * 1000), teller_worker("c", [])
    second = FakeWorker(refuses, other={"/tokenize": tokenize})
    async with (
        first,
        second,
        third,
        running_gateway(
            [first, second, third], fast_path=fast_path, resume_streams=True, policy="least_load"
        ) as gateway,
    ):
        body = await post(gateway, request_fields(True, max_tokens=30))
        assert [len(generations(worker)) for worker in (first, second, third)] == [1, 1, int(goes_on)]
        assert (text_of(body) == STORY) if goes_on else (b"the next worker answered 400" in body)
        assert gateway.inflight == 0


async def test_a_worker_that_does_not_count_tokens_is_given_no_limit_to_guess(fast_path: bool) -> None:
    dead = teller_worker("a", [402] * 9)
    alive = FakeWorker(story_script(StoryTeller(STORY, name="b"), lambda: None))
    async with dead, alive, running_gateway([dead, alive], fast_path=fast_path, resume_streams=True) as gateway:
        limited = [await post(gateway, request_fields(True, max_tokens=9)) for _ in range(2)]
        assert all(b"does not count tokens" in body for body in limited)
        free = [text_of(await post(gateway, request_fields(True))) for _ in range(2)]
        assert free == [STORY] * 2


async def test_a_hung_worker_is_left_for_another(fast_path: bool) -> None:
    async def hangs(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        for item in StoryTeller(STORY, name="a").answer(request.json)[:4]:
            await reply.chunk(item)
        await until(lambda: False, 60, "for ever")

    hung, alive = FakeWorker(hangs), teller_worker("b", [])
    async with (
        hung,
        alive,
        running_gateway([hung, alive], fast_path=fast_path, resume_streams=True, idle_timeout_s=0.4) as gateway,
    ):
        assert [text_of(await post(gateway, request_fields(True))) for _ in range(2)] == [STORY] * 2
        await until(lambda: hung.active == 0, 1, "the hung worker was left")
        assert gateway.metric("upstream_errors_total", kind="timeout") == 2


@pytest.mark.parametrize("limit", ["idle_timeout_s", "total_timeout_s"])
async def test_a_next_worker_that_hangs_before_it_begins(fast_path: bool, limit: str) -> None:
    """It does not even count tokens: a third one is asked, if there is time, and the deadline holds."""

    async def hangs(request: Received, reply: Reply) -> None:
        await until(lambda: False, 60, "for ever")

    limits: dict[str, Any] = {limit: 0.6}
    dead, third = teller_worker("a", [402] * 9), teller_worker("c", [])
    second = FakeWorker(hangs, other={"/tokenize": hangs})
    async with (
        dead,
        second,
        third,
        running_gateway(
            [dead, second, third], fast_path=fast_path, resume_streams=True, policy="least_load", **limits
        ) as gateway,
    ):
        async with asyncio.timeout(4):
            body = await post(gateway, request_fields(True, max_tokens=30))
        if limit == "idle_timeout_s":
            assert text_of(body) == STORY
        else:
            assert b'"upstream_timeout"' in body and not generations(third)
        assert gateway.inflight == 0


async def test_a_client_that_leaves_between_two_workers_leaves_nothing(fast_path: bool) -> None:
    dead = teller_worker("a", [402] * 9)

    async def never(request: Received, reply: Reply) -> None:
        await until(lambda: False, 60, "for ever")

    counting = FakeWorker(story_script(StoryTeller(STORY), lambda: None), other={"/tokenize": never})
    async with dead, counting, running_gateway([dead, counting], fast_path=fast_path, resume_streams=True) as gateway:
        while not any(request.target == "/tokenize" for request in counting.requests):
            client = await gateway.raw()
            body = json.dumps(request_fields(True, max_tokens=30)).encode()
            await client.send(request_bytes(body))
            await client.head()
            await until(lambda: gateway.inflight == 0 or counting.requests, 2, "it is over or waits")
            await until(
                lambda: gateway.inflight == 0 or any(r.target == "/tokenize" for r in counting.requests), 2, "counts"
            )
            client.close()
        await until(lambda: gateway.inflight == 0, 2, "nothing is left")
        assert gateway.metric("requests_in_flight") == 0


async def test_a_cut_behind_the_last_event_is_no_loss(fast_path: bool) -> None:
    """Without --resume-streams too: the client has everything."""

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event("x"))
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.raw(b"")
        reply.cut()

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        body = await post(gateway, request_fields(True))
        assert body == event("x") + b"data: [DONE]\n\n"
        assert gateway.inflight == 0
