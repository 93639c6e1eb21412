"""Cases of docs/gateway-cases.md that are about the whole gateway and belong to no single package."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.proxy.endpoints import head_of, inbound_of
from tests.helpers.fake_worker import MODEL, FakeWorker
from tests.helpers.gateway_harness import CHAT, RunningGateway, chat_body, running_gateway
from tests.helpers.processes import until

PROMPT = "You are a careful assistant. " * 60


async def fleet(stack: AsyncExitStack, number: int, **settings: Any) -> tuple[list[FakeWorker], RunningGateway]:
    """Workers and a gateway before them."""
    workers = [await stack.enter_async_context(FakeWorker()) for _ in range(number)]
    return workers, await stack.enter_async_context(running_gateway(workers, **settings))


def worker_of(route: str) -> str:
    """The worker's name in an x-canopy-route header."""
    return route.split(";")[0].removeprefix("worker=")


async def test_turns_of_one_talk_meet_whatever_their_request_ids(fast_path: bool) -> None:
    """24: nothing but the prompt decides where a follow-up finds its prefix."""
    async with AsyncExitStack() as stack:
        _, gateway = await fleet(stack, 4, policy="cache_aware", fast_path=fast_path)
        homes = set()
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "hi"}]
        for turn in range(6):
            body = json.dumps({"model": MODEL, "messages": messages, "user": f"u{turn}"})
            reply = await gateway.client.post(CHAT, content=body, headers={"x-request-id": f"id-{turn}"})
            homes.add(worker_of(reply.headers["x-canopy-route"]))
            messages += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": f"turn {turn} " * 20}]
        assert len(homes) == 1


@pytest.mark.parametrize("salt", ["cache_salt", "extra_key", "lora_path"])
async def test_what_parts_a_worker_s_cache_parts_affinity(fast_path: bool, salt: str) -> None:
    """25: the same text under another salt is cold; under the same one it is warm."""
    async with AsyncExitStack() as stack:
        _, gateway = await fleet(stack, 2, policy="cache_aware", fast_path=fast_path)

        async def cached(value: str) -> int:
            salted: dict[str, Any] = {salt: value}
            reply = await gateway.client.post(CHAT, content=chat_body(PROMPT, **salted))
            return int(reply.headers["x-canopy-route"].split("cached=")[1].split(";")[0])

        seen = [await cached(value) for value in ("a", "a", "b", "b", "a")]
        assert [bool(tokens) for tokens in seen] == [False, True, False, True, True]


@pytest.mark.parametrize("policy", ["manual", "consistent_hashing", "cache_aware"])
async def test_a_session_leaves_a_dead_worker_at_once(fast_path: bool, policy: str) -> None:
    """31: no request of the session fails, and it stays where it went."""
    async with AsyncExitStack() as stack:
        workers, gateway = await fleet(stack, 3, policy=policy, fast_path=fast_path, health_interval_s=60)

        async def turn() -> str:
            reply = await gateway.client.post(CHAT, content=chat_body(PROMPT), headers={"x-session-id": "s1"})
            assert reply.status_code == 200
            return worker_of(reply.headers["x-canopy-route"])

        homes = {await turn() for _ in range(4)}
        assert len(homes) == 1
        dead = next(worker for worker in workers if worker.url.endswith(f"//{next(iter(homes))}"))
        await dead.kill()
        new_homes = [await turn() for _ in range(5)]
        assert len(set(new_homes)) == 1 and not homes & set(new_homes)


async def test_static_workers_are_there_after_a_restart(fast_path: bool) -> None:
    """51: with one model its name is checked, and a gateway started anew finds its workers."""
    async with FakeWorker() as worker:
        for _ in range(2):
            async with running_gateway([worker], fast_path=fast_path) as gateway:
                assert (await gateway.chat()).status_code == 200
                wrong = await gateway.client.post(CHAT, content=chat_body(model="another"))
                assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_route_header_is_true(fast_path: bool) -> None:
    """56: for answers, refusals by workers, and errors of our own, the worker that was asked last."""
    async with AsyncExitStack() as stack:
        workers, gateway = await fleet(stack, 2, policy="random", fast_path=fast_path, health_interval_s=60)
        for _ in range(10):
            before = [len(worker.requests) for worker in workers]
            name = worker_of((await gateway.chat()).headers["x-canopy-route"])
            asked = [worker for worker, count in zip(workers, before, strict=True) if len(worker.requests) > count]
            assert [f"127.0.0.1:{worker.port}" for worker in asked] == [name]
        await workers[0].kill()
        await workers[1].kill()
        reply = await gateway.chat()
        assert reply.status_code == 503
        assert worker_of(reply.headers["x-canopy-route"]) in {f"127.0.0.1:{worker.port}" for worker in workers}
        await until(lambda: gateway.inflight == 0, 2, "nothing is in flight")


def test_images_cost_routing_little() -> None:
    """60: what is read for routing from a chat with 2 MB of picture takes far less than 50 ms."""
    picture = "data:image/png;base64," + "iVBORw0KGgo" * 190_000
    content = [{"type": "text", "text": PROMPT}, {"type": "image_url", "image_url": {"url": picture}}]
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}).encode()
    took_s = []
    for _ in range(7):
        start_s = time.perf_counter()
        inbound = inbound_of(head_of("POST", CHAT, b"", []), body, b"id")
        took_s.append(time.perf_counter() - start_s)
    assert inbound.route.media and inbound.route.prompt_bytes < 10_000  # of the picture, its hash
    assert statistics.median(took_s) < 0.05
