"""A worker that hangs with requests inside: they are rescued as soon as its probes say so, long before a time-out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.helpers.fake_worker import FakeWorker, Received, Reply, answer
from tests.helpers.gateway_harness import chat_body, request_bytes, running_gateway
from tests.helpers.processes import until
from tests.helpers.story_worker import StoryTeller, request_fields, story_script, text_of, tokenize

QUICK_PROBES: dict[str, Any] = {"health_interval_s": 0.1, "health_timeout_s": 0.2, "health_max_failures": 3}
STORY = "Once upon a time there was a cat."


@pytest.fixture
def fast_path() -> bool:
    """One data path is enough: what is tested here lies behind both."""
    return True


class Hanging:
    """A worker that, once it hangs, answers nothing, not even probes, but goes on accepting."""

    def __init__(self, *, begun: bool = False) -> None:
        self.awake = asyncio.Event()
        self._begun = begun  # its answers have begun when it hangs
        self.worker = FakeWorker(self.answer, other={"/health": self.health})
        self.hangs = False

    async def answer(self, request: Received, reply: Reply) -> None:
        self.hangs = True
        if self._begun:
            await reply.stream_head()
            for item in StoryTeller(STORY).answer(request.json)[:4]:
                await reply.chunk(item)
        await self.awake.wait()
        await answer(request, reply)

    async def health(self, request: Received, reply: Reply) -> None:
        if self.hangs:
            await self.awake.wait()
        await reply.json({})


async def test_who_waits_for_a_hung_worker_goes_elsewhere(fast_path: bool) -> None:
    hanging = Hanging()
    async with (
        hanging.worker,
        FakeWorker() as good,
        running_gateway([hanging.worker, good], fast_path=fast_path, **QUICK_PROBES) as gateway,
    ):
        async with asyncio.timeout(8):
            replies = await asyncio.gather(*(gateway.chat(stream=stream) for stream in (True, False) * 4))
        assert {reply.status_code for reply in replies} == {200}
        assert len(good.requests) == 8
        assert gateway.metric("retries_total", cause="silent") == 4
        await until(lambda: hanging.worker.active == 0, 1, "the hung worker was left")
        assert gateway.inflight == 0


async def test_with_nobody_else_they_wait_on(fast_path: bool) -> None:
    """It may only be busy: compiling, or loading."""
    hanging = Hanging()
    async with (
        hanging.worker,
        running_gateway([hanging.worker], fast_path=fast_path, **QUICK_PROBES) as gateway,
    ):
        asked = asyncio.create_task(gateway.chat())
        await until(lambda: not gateway.gateway.registry.snapshot.ready, 5, "it is out of service")
        await asyncio.sleep(0.5)
        assert not asked.done() and gateway.inflight == 1
        hanging.awake.set()
        assert (await asked).status_code == 200
        await until(lambda: gateway.gateway.registry.snapshot.ready, 5, "it is in service again")


async def test_a_worker_that_says_it_is_not_well_keeps_what_it_has(fast_path: bool) -> None:
    """503 from /health asks for nothing new: a worker that drains says so."""
    hanging = Hanging()
    hanging.worker.other.clear()
    async with (
        hanging.worker,
        FakeWorker() as good,
        running_gateway([hanging.worker, good], fast_path=fast_path, **QUICK_PROBES) as gateway,
    ):
        asked = asyncio.create_task(gateway.chat())
        await until(lambda: hanging.worker.active, 5, "it is there")
        hanging.worker.healthy = False
        await until(lambda: len(gateway.gateway.registry.snapshot.ready["fake-model"]) == 1, 5, "it is out of service")
        await asyncio.sleep(0.5)
        hanging.awake.set()
        assert (await asked).status_code == 200
        assert not good.requests


async def test_streams_that_have_begun_are_resumed_if_that_is_wanted(fast_path: bool) -> None:
    hanging = Hanging(begun=True)
    good = FakeWorker(story_script(StoryTeller(STORY, name="b"), lambda: None), other={"/tokenize": tokenize})
    async with (
        hanging.worker,
        good,
        running_gateway([hanging.worker, good], fast_path=fast_path, resume_streams=True, **QUICK_PROBES) as gateway,
    ):
        client = await gateway.raw()
        await client.send(request_bytes(json.dumps(request_fields(True)).encode()))
        async with asyncio.timeout(8):
            _, _, body = await client.response()
        client.close()
        assert text_of(body) == STORY
        assert gateway.metric("retries_total", cause="resume") == 1
        assert gateway.inflight == 0


async def test_a_next_worker_that_falls_silent_is_left_too(fast_path: bool) -> None:
    """It hangs while it is asked for its count of tokens; its probes tell, before any time-out does."""
    never = asyncio.Event()

    async def hangs(request: Received, reply: Reply) -> None:
        silent.hangs = True
        await never.wait()

    dead = FakeWorker(story_script(StoryTeller(STORY), lambda: 402))
    silent = Hanging()
    silent.worker.other["/tokenize"] = hangs
    good = FakeWorker(story_script(StoryTeller(STORY, name="b"), lambda: None), other={"/tokenize": tokenize})
    async with (
        dead,
        silent.worker,
        good,
        running_gateway(
            [dead, silent.worker, good], fast_path=fast_path, resume_streams=True, policy="least_load", **QUICK_PROBES
        ) as gateway,
    ):
        client = await gateway.raw()
        await client.send(request_bytes(json.dumps(request_fields(True, max_tokens=30)).encode()))
        async with asyncio.timeout(3):
            _, _, body = await client.response()
        client.close()
        assert text_of(body) == STORY
        assert gateway.metric("retries_total", cause="resume") == 2
        assert gateway.inflight == 0


async def test_others_are_left_as_they_are(fast_path: bool) -> None:
    """Without --resume-streams a begun stream waits for its idle time-out, as the worker may come back."""
    hanging = Hanging(begun=True)
    async with (
        hanging.worker,
        FakeWorker() as good,
        running_gateway([hanging.worker, good], fast_path=fast_path, idle_timeout_s=3, **QUICK_PROBES) as gateway,
    ):
        client = await gateway.raw()
        await client.send(request_bytes(chat_body(stream=True)))
        await until(lambda: len(gateway.gateway.registry.snapshot.ready["fake-model"]) == 1, 5, "it is out of service")
        assert gateway.inflight == 1 and not good.requests
        _, _, body = await client.response()
        assert b'"upstream_timeout"' in body
        client.close()
