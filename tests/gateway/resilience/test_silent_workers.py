"""A worker that hangs with requests inside: they are rescued as soon as its probes say so, long before a time-out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.helpers.fake_worker import FakeWorker, Received, Reply, answer, event
from tests.helpers.gateway_harness import request_bytes, running_gateway
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


@pytest.mark.parametrize("resume", [False, True])
async def test_streams_that_have_begun_end_if_nobody_can_resume_them(fast_path: bool, resume: bool) -> None:
    """Long before their idle time-out, with one error; by a worker that is alone, or without --resume-streams."""
    hanging, good = Hanging(begun=True), FakeWorker()
    workers = [hanging.worker] if resume else [hanging.worker, good]
    async with (
        hanging.worker,
        good,
        running_gateway(workers, fast_path=fast_path, resume_streams=resume, **QUICK_PROBES) as gateway,
    ):
        client = await gateway.raw()
        await client.send(request_bytes(json.dumps(request_fields(True)).encode()))
        async with asyncio.timeout(8):
            status, _, body = await client.response()
        client.close()
        *_, last, rest = body.split(b"\n\n")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (status, error["code"], rest) == (200, "worker_failed", b"") and "no probe" in error["message"]
        assert gateway.metric("upstream_errors_total", kind="hung") == 1
        assert gateway.inflight == 0 and not good.requests


@pytest.mark.parametrize("taken_out", [False, True])
async def test_a_worker_from_which_tokens_flow_keeps_its_silent_streams(fast_path: bool, taken_out: bool) -> None:
    """Its probes fail, and one stream waits; but another one goes on: it is busy, not dead, even if it was taken out
    for another reason."""
    go_on, probes = asyncio.Event(), 0

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event({"choices": [{"delta": {"content": "x"}}]}))
        if "flows" in request.json["messages"][0]["content"]:
            while not go_on.is_set():
                await reply.chunk(event({"choices": [{"delta": {"content": "y"}}]}))
                await asyncio.sleep(0.02)
        await go_on.wait()
        await reply.last_chunk()

    async def health(request: Received, reply: Reply) -> None:
        nonlocal probes
        if worker.active:
            probes += 1
            await asyncio.sleep(60)
        await reply.json({})

    worker = FakeWorker(script, other={"/health": health})
    async with worker, running_gateway([worker], fast_path=fast_path, **QUICK_PROBES) as gateway:
        streams = [asyncio.create_task(gateway.chat(text, stream=True)) for text in ("flows", "silent")]
        await until(lambda: worker.active == 2, 5, "both are there")
        if taken_out:
            gateway.gateway.registry.degrade(worker.url, "for the test")
        before = probes
        await until(lambda: probes > before + 6, 10, "many probes have failed")
        assert gateway.inflight == 2 and not any(stream.done() for stream in streams)
        go_on.set()
        assert [(await stream).status_code for stream in streams] == [200, 200]
        assert gateway.metric("upstream_errors_total", kind="hung") == 0
