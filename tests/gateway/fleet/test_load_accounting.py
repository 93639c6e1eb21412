"""The ledger of what runs where: right while streams are open, on every endpoint, on both paths, however they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from common.process import raise_file_limit
from gateway.proxy.upstream import UpstreamConnection
from tests.helpers.fake_worker import MODEL, FakeWorker, Received, Reply, answer, event
from tests.helpers.gateway_harness import CHAT, RawClient, RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until

ENDPOINTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/generate": {"text": "x"},
}


class Gate:
    """A script whose answers wait inside, streamed or not, until the gate opens."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def script(self, request: Received, reply: Reply) -> None:
        if not request.json.get("stream"):
            await self.open.wait()
            await answer(request, reply)
            return
        await reply.stream_head()
        await reply.chunk(event(1))
        await self.open.wait()
        await reply.chunk(event(2))
        await reply.last_chunk()


async def ask(gateway: RunningGateway, path: str, stream: bool) -> RawClient:
    client = await gateway.raw()
    fields: dict[str, Any] = {"model": MODEL, "stream": stream, **ENDPOINTS[path]}
    await client.send(request_bytes(json.dumps(fields).encode(), path))
    return client


def ledger(gateway: RunningGateway) -> list[int]:
    return [worker.load.inflight for worker in gateway.gateway.registry.snapshot.workers]


async def test_ten_streams_count_until_each_of_them_ends(fast_path: bool) -> None:
    gates = [Gate() for _ in range(10)]

    async def script(request: Received, reply: Reply) -> None:
        await gates[int(request.json["messages"][0]["content"])].script(request, reply)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        clients = []
        for number in range(10):
            clients.append(client := await gateway.raw())
            await client.send(request_bytes(chat_body(str(number), stream=True)))
            await client.reader.readuntil(event(1))  # it is under way: its head went by long ago
        for left in range(10, 0, -1):
            assert gateway.inflight == worker.active == left
            assert gateway.metric("requests_in_flight") == left
            gates[left - 1].open.set()
            await clients[left - 1].reader.readuntil(b"\r\n0\r\n\r\n")
            await until(lambda left=left: worker.active == left - 1, 2, "the worker is done with it")  # type: ignore[misc]
        assert gateway.inflight == 0
        for client in clients:
            client.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", list(ENDPOINTS))
async def test_every_endpoint_is_counted_and_spread_alike(fast_path: bool, path: str, stream: bool) -> None:
    gate = Gate()
    workers = [FakeWorker(gate.script) for _ in range(4)]
    async with (
        workers[0],
        workers[1],
        workers[2],
        workers[3],
        running_gateway(workers, fast_path=fast_path, policy="least_load") as gateway,
    ):
        clients = [await ask(gateway, path, stream) for _ in range(40)]
        await until(lambda: sum(worker.active for worker in workers) == 40, 5, "all are there")
        assert [worker.active for worker in workers] == ledger(gateway) == [10] * 4
        gate.open.set()
        assert {(await client.response())[0] for client in clients} == {200}
        assert gateway.inflight == 0
        for client in clients:
            client.close()


async def test_the_gateway_s_view_of_a_load_is_the_worker_s_own(fast_path: bool) -> None:
    """Ours in the ledger, all that runs there in the report, and others' as the difference."""
    gate = Gate()
    async with FakeWorker(gate.script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        clients = [await ask(gateway, CHAT, True) for _ in range(7)]
        await until(lambda: worker.active == 7, 5, "all are there")
        worker.load = {"num_running_reqs": 5, "num_waiting_reqs": 4, "num_used_tokens": 123}

        async def view() -> dict[str, Any]:
            listed = (await gateway.client.get("/workers")).json()["workers"][0]
            return {"in_flight": listed["in_flight"], **(listed["load"] or {})}

        async with asyncio.timeout(5):
            while (await view()).get("used_tokens") != 123:
                await asyncio.sleep(0.02)
        seen = await view()
        assert (seen["in_flight"], seen["running_requests"], seen["waiting_requests"]) == (7, 5, 4)
        load = gateway.gateway.registry.snapshot.workers[0].load
        assert (load.requests, load.others_requests) == (9, 2)
        gate.open.set()
        for client in clients:
            await client.response()
            client.close()


async def test_a_close_that_fails_leaks_nothing(fast_path: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client leaves in its stream, and closing the worker's connection raises."""
    gate = Gate()
    faults: list[object] = []
    close = UpstreamConnection.close

    def failing_close(self: UpstreamConnection) -> None:
        close(self)
        raise OSError("cannot close")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context.get("exception")))
    async with FakeWorker(gate.script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        clients = [await ask(gateway, CHAT, True) for _ in range(5)]
        for client in clients:
            await client.reader.readuntil(event(1))
        monkeypatch.setattr(UpstreamConnection, "close", failing_close)
        for client in clients:
            client.close()
        await until(lambda: worker.active == 0, 3, "the worker was left")
        monkeypatch.undo()
        await until(lambda: gateway.inflight == 0, 3, "nothing is in flight")
        assert gateway.metric("requests_in_flight") == 0
        assert gateway.gateway.registry.snapshot.workers[0].load.pending_tokens == 0
        gate.open.set()
        assert (await gateway.chat("after")).status_code == 200
    assert all(isinstance(fault, OSError) for fault in faults)


async def test_two_waves_of_two_thousand_streams() -> None:
    """No error of the gateway's own making, and the second wave finds it as the first one did."""
    raise_file_limit()

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        for index in range(3):
            await reply.chunk(event(index))
            await asyncio.sleep(0.2)
        await reply.last_chunk()

    async def one(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(chat_body(stream=True), CHAT, "connection: close"))
        whole = await reader.read()
        writer.close()
        return whole

    async with (
        FakeWorker(script) as a,
        FakeWorker(script) as b,
        running_gateway([a, b], health_interval_s=30) as gateway,
    ):
        for _ in range(2):
            answers = await asyncio.gather(*(one(gateway.port) for _ in range(2000)))
            assert all(whole.startswith(b"HTTP/1.1 200 ") and whole.endswith(b"0\r\n\r\n") for whole in answers)
            assert gateway.inflight == 0
            assert gateway.metric("client_disconnects_total") == 0
