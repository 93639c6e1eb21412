"""Admission over real HTTP: bounds hold, queued requests go in order, and no slot is lost however they end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fake_worker import FakeWorker, Received, Reply, answer
from tests.helpers.gateway_harness import RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until


class Held:
    """A script that answers when told, and keeps count."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.running = self.most = 0
        self.order: list[str] = []

    async def __call__(self, request: Received, reply: Reply) -> None:
        self.order.append(request.json["messages"][0]["content"])
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go_on.wait()
            await answer(request, reply)
        finally:
            self.running -= 1


async def queued(gateway: RunningGateway, number: int) -> None:
    await until(lambda: gateway.metric("queue_requests") == number, 5, f"{number} requests wait")


async def test_no_more_than_the_bound_and_in_order(fast_path: bool) -> None:
    script = Held()
    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], fast_path=fast_path, max_concurrent_requests=1) as gateway,
    ):
        chats = []
        for number, priority in enumerate((0, 0, -3, 9, 0)):
            chats.append(asyncio.create_task(gateway.chat(str(number), **{"x-canopy-priority": str(priority)})))
            await until(lambda n=number: gateway.gateway.forwarder.inflight == n + 1, 5, "it is in")  # type: ignore[misc]
        await queued(gateway, 4)
        assert gateway.metric("queue_bytes") == 4 * len(chat_body("0"))
        script.go_on.set()
        assert [(await chat).status_code for chat in chats] == [200] * 5
        assert (script.order, script.most) == (["0", "3", "1", "4", "2"], 1)
        assert gateway.metric("queue_wait_seconds_count") == 4
        assert (gateway.metric("admitted_requests"), gateway.metric("queue_requests")) == (0, 0)


async def test_a_full_queue_refuses_at_once_and_a_time_out_later(fast_path: bool) -> None:
    script = Held()
    async with (
        FakeWorker(script) as worker,
        running_gateway(
            [worker], fast_path=fast_path, max_concurrent_requests=1, queue_size=1, queue_timeout_s=0.4
        ) as gateway,
    ):
        running = asyncio.create_task(gateway.chat())
        await until(lambda: script.running, 5, "one runs")
        waiting = asyncio.create_task(gateway.chat())
        await queued(gateway, 1)
        full = await gateway.chat()
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert full.json()["error"]["code"] == "queue_full"
        late = await waiting
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert late.json()["error"]["code"] == "queue_timeout"
        script.go_on.set()
        assert (await running).status_code == 200
        assert (await gateway.chat()).status_code == 200
        assert gateway.metric("turned_away_total", code="queue_full") == 1
        assert gateway.metric("turned_away_total", code="queue_timeout") == 1


async def test_who_leaves_while_waiting_is_gone_at_once(fast_path: bool) -> None:
    script = Held()
    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], fast_path=fast_path, max_concurrent_requests=1) as gateway,
    ):
        running = asyncio.create_task(gateway.chat("a"))
        await until(lambda: script.running, 5, "one runs")
        client = await gateway.raw()
        await client.send(request_bytes(chat_body("b")))
        await queued(gateway, 1)
        client.close()
        await queued(gateway, 0)
        assert gateway.metric("queue_bytes") == 0
        script.go_on.set()
        assert (await running).status_code == 200
        assert script.order == ["a"]


async def various(request: Received, reply: Reply) -> None:
    """Ends in the way that the prompt names."""
    text = request.json["messages"][0]["content"]
    if text == "cut":
        reply.cut()
    elif text == "error":
        await reply.json({"error": {"message": "no"}}, 400)
    elif text == "midstream":
        await reply.stream_head()
        await reply.chunk(b"data: 1\n\n")
        reply.cut()
    elif text == "slow":
        await asyncio.sleep(30)
    else:
        await answer(request, reply)


async def test_no_slot_is_lost_however_requests_end(fast_path: bool) -> None:
    limits = {"max_concurrent_requests": 2, "queue_size": 1000}
    async with (
        FakeWorker(various) as worker,
        running_gateway(
            [worker], fast_path=fast_path, disable_retries=True, disable_circuit_breaker=True, **limits
        ) as gateway,
    ):
        clients = []
        for text in ["cut", "error", "midstream", "slow", "fine"] * 8:
            client = await gateway.raw()
            await client.send(request_bytes(chat_body(text, stream=text == "midstream")))
            clients.append((text, client))
        for text, client in clients:
            if text == "slow":
                client.close()
        async with asyncio.timeout(20):
            assert all([await client.reader.read(1) for text, client in clients if text != "slow"])
        await until(lambda: gateway.metric("admitted_requests") == 0, 5, "all are over")
        assert gateway.metric("queue_requests") == 0
        assert (await gateway.chat()).status_code == 200
        for _, client in clients:
            client.close()


async def test_a_long_queue_that_fails_ends_without_depth() -> None:
    """Each of them fails the moment it is let in, and so lets the next one in."""
    script, number = Held(), 250
    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], max_concurrent_requests=1, queue_size=1000) as gateway,
    ):
        clients = [await gateway.raw() for _ in range(number)]
        for client in clients:
            await client.send(request_bytes(chat_body()))
        await queued(gateway, number - 1)
        gateway.gateway.registry.remove(worker.url)
        assert {(await client.response())[0] for client in clients} == {502, 503}
        for client in clients:
            client.close()


async def test_the_rate_is_kept() -> None:
    async with FakeWorker() as worker, running_gateway([worker], rate_limit_tokens_per_second=10) as gateway:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        answers = await asyncio.gather(*(gateway.chat() for _ in range(15)))
        assert {a.status_code for a in answers} == {200}
        assert loop.time() - start_s > 0.4  # ten at once, then five at ten a second


async def test_limits_of_one_key_are_429_and_leave_others_alone(fast_path: bool, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        "- {key: one, max_concurrent_requests: 1}\n- {key: slow, requests_per_second: 0.1}\n- {key: free}\n"
    )
    script = Held()
    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], fast_path=fast_path, api_key_file=str(file)) as gateway,
    ):
        first = asyncio.create_task(gateway.chat(authorization="Bearer one"))
        await until(lambda: script.running, 5, "one runs")
        second = await gateway.chat(authorization="Bearer one")
        assert (second.status_code, second.headers["retry-after"]) == (429, "1")
        assert second.json()["error"]["type"] == "rate_limit_error"
        script.go_on.set()
        assert (await first).status_code == 200
        assert (await gateway.chat(authorization="Bearer one")).status_code == 200
        assert (await gateway.chat(authorization="Bearer slow")).status_code == 200
        limited = await gateway.chat(authorization="Bearer slow")
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "10")
        assert [(await gateway.chat(authorization="Bearer free")).status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("value", ["x", "101", "--1", "1.5", ""])
async def test_a_priority_that_is_none_is_400(value: str) -> None:
    async with FakeWorker() as worker, running_gateway([worker], max_concurrent_requests=1) as gateway:
        refused = await gateway.chat(**{"x-canopy-priority": value})
        assert refused.status_code == 400
        assert "x-canopy-priority" in refused.json()["error"]["message"]


async def test_an_error_of_ours_stops_neither_the_queue_nor_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Held()
    async with FakeWorker(script) as worker, running_gateway([worker], max_concurrent_requests=1) as gateway:
        chats = [asyncio.create_task(gateway.chat("0"))]
        await until(lambda: script.running, 5, "one runs")
        for number in (1, 2):
            chats.append(asyncio.create_task(gateway.chat(str(number))))
            await queued(gateway, number)
        router = gateway.gateway.forwarder.router
        route, calls = router.route, 0

        def fails_once(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise RuntimeError("a fault in a policy")
            return route(*arguments)

        monkeypatch.setattr(router, "route", fails_once)
        script.go_on.set()
        assert [(await chat).status_code for chat in chats] == [200, 500, 200]
        assert gateway.metric("admitted_requests") == 0
