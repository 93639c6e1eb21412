"""Clients that leave, read slowly, or ask nothing for long; over both data paths."""

from __future__ import annotations

import asyncio

from tests.helpers.clock import FakeClock
from tests.helpers.fake_worker import DONE, FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import chat_body, request_bytes, running_gateway
from tests.helpers.processes import until

LEAVE_DEADLINE_S = 1.0


async def silent(request: Received, reply: Reply) -> None:
    await asyncio.sleep(60)


async def endless(request: Received, reply: Reply) -> None:
    await reply.stream_head()
    while True:
        await reply.chunk(event("x"))
        await asyncio.sleep(0.01)


async def test_clients_that_leave_before_the_head_free_the_worker(fast_path: bool) -> None:
    async with FakeWorker(silent) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        clients = [await gateway.raw() for _ in range(20)]
        for client in clients:
            await client.send(request_bytes(chat_body()))
        await until(lambda: worker.active == 20, 5, "20 requests wait")
        assert gateway.inflight == 20
        for client in clients:
            client.close()
        await until(lambda: worker.active == 0, LEAVE_DEADLINE_S, "the worker was left")
        assert worker.aborted == 20
        assert gateway.inflight == 0
        assert gateway.metric("client_disconnects_total") == 20


async def test_clients_that_leave_their_stream_free_the_worker(fast_path: bool) -> None:
    async with FakeWorker(endless) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        clients = [await gateway.raw() for _ in range(20)]
        for client in clients:
            await client.send(request_bytes(chat_body(stream=True)))
            assert (await client.head())[0] == 200
        for client in clients:
            client.close()
        await until(lambda: worker.active == 0, LEAVE_DEADLINE_S, "the worker was left")
        assert gateway.inflight == 0


async def test_a_client_that_closes_behind_the_last_event_was_served(fast_path: bool) -> None:
    async def complete_but_open(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event("x"))
        await reply.chunk(DONE)
        await asyncio.sleep(60)

    async with FakeWorker(complete_but_open) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(request_bytes(chat_body(stream=True)))
        await client.reader.readuntil(DONE)
        client.close()
        await until(lambda: gateway.inflight == 0, LEAVE_DEADLINE_S, "the request is over")
        assert gateway.metric("client_disconnects_total") == 0


async def test_half_close_counts_as_leaving(fast_path: bool) -> None:
    async with FakeWorker(silent) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(request_bytes(chat_body()))
        await until(lambda: worker.active == 1, 5, "the request waits")
        client.writer.write_eof()
        await until(lambda: worker.active == 0, LEAVE_DEADLINE_S, "the worker was left")
        client.close()


async def test_client_that_leaves_while_we_connect(fast_path: bool) -> None:
    """The backlog of a listener that never accepts is full, so that connecting takes long."""
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        pool = gateway.gateway.forwarder.pools.get(worker.url)
        pool.close_idle()
        never = asyncio.Event()
        connect = pool.connect

        async def slow_connect(timeout_s: float) -> object:
            await never.wait()
            return await connect(timeout_s)

        pool.connect = slow_connect  # type: ignore[method-assign, assignment]
        while (idle := pool.take()) is not None:
            idle.close()
        client = await gateway.raw()
        await client.send(request_bytes(chat_body()))
        await until(lambda: gateway.inflight == 1, 2, "the request is there")
        client.close()
        await until(lambda: gateway.inflight == 0, LEAVE_DEADLINE_S, "the request is over")
        never.set()
        await asyncio.sleep(0.05)
        assert not worker.requests


async def test_a_client_that_takes_nothing_is_left_in_the_end(fast_path: bool) -> None:
    """It must not hold a place at a worker until the total time-out, nor a connection for ever."""

    async def pours(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        while True:
            await reply.chunk(event("x" * 100_000))

    clock = FakeClock()
    async with (
        FakeWorker(pours) as worker,
        running_gateway(
            [worker], fast_path=fast_path, clock=clock, idle_timeout_s=20, health_interval_s=3600
        ) as gateway,
    ):
        forwarder = gateway.gateway.forwarder
        client = await gateway.raw()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request_bytes(chat_body(stream=True)))
        await until(lambda: any(exchange._paused for exchange in forwarder.live), 10, "it holds us back")
        forwarder.check_times(clock.now_s())  # which sees what came before
        clock.advance(20)
        forwarder.check_times(clock.now_s())
        assert gateway.inflight == 1
        clock.advance(1)
        forwarder.check_times(clock.now_s())
        await until(lambda: worker.active == 0 and gateway.inflight == 0, 5, "the worker was left")
        assert gateway.metric("client_disconnects_total") == 1
        assert gateway.metric("upstream_errors_total") == 0
        if fast_path:
            connections = gateway.server.server_state.connections
            for _ in range(3):
                gateway.server.close_idle_connections()
                clock.advance(6)
            await until(lambda: not connections, 5, "the connection is gone")
        client.close()


async def test_slow_reader_holds_back_the_worker(fast_path: bool) -> None:
    """The worker has 50 MB to say; while nobody reads, the gateway takes a small part, and then every byte."""
    piece, count = b"x" * 50_000, 1000
    sent = 0

    async def script(request: Received, reply: Reply) -> None:
        nonlocal sent
        await reply.head(content_length=str(len(piece) * count))
        for _ in range(count):
            await reply.raw(piece)
            sent += len(piece)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request_bytes(chat_body()))
        await until(lambda: sent, 5, "the worker writes")
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 20_000_000  # kernel buffers of two connections, and a little of ours
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        _, headers, body = await client.response()
        assert len(body) == len(piece) * count == int(headers["content-length"])
        client.close()


async def test_idle_clients_are_dropped_and_busy_ones_are_not() -> None:
    clock = FakeClock()
    async with FakeWorker(endless) as worker, running_gateway([worker], clock=clock) as gateway:
        fresh, idle, busy = [await gateway.raw() for _ in range(3)]
        await idle.send(request_bytes(b"{"))
        assert (await idle.response())[0] == 400
        await busy.send(request_bytes(chat_body(stream=True)))
        assert (await busy.head())[0] == 200
        gateway.server.close_idle_connections()
        await idle.send(request_bytes(b"{"))
        assert (await idle.response())[0] == 400
        clock.advance(100)
        gateway.server.close_idle_connections()
        assert await asyncio.wait_for(idle.reader.read(), 2) == b""
        assert await busy.reader.readuntil(b"\n\n")
        for client in (fresh, idle, busy):
            client.close()
