"""Bounds on what clients send: heads, time, connections. The same on both data paths."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.helpers.clock import FakeClock
from tests.helpers.fake_worker import FakeWorker
from tests.helpers.gateway_harness import CHAT, RawClient, RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until


async def error_of(client: RawClient) -> tuple[int, str]:
    """Status and message of an error answer after which the connection ends."""
    status, headers, body = await client.response()
    assert headers["connection"] == "close"
    assert await client.reader.read() == b""
    client.close()
    return status, json.loads(body)["error"]["message"]


def connections(gateway: RunningGateway) -> int:
    return len(gateway.server.server_state.connections)


@pytest.mark.parametrize("path", [CHAT, "/workers"])
async def test_large_heads_are_431(fast_path: bool, path: str) -> None:
    async with running_gateway([], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(f"POST {path} HTTP/1.1\r\nhost: g\r\n".encode() + b"x-filler: xxxx\r\n" * 3900)
        await asyncio.sleep(0.1)
        await client.send(b"x-filler: xxxx\r\n" * 300)
        assert (await error_of(client))[0] == 431


@pytest.mark.parametrize("path", [CHAT, "/workers"])
@pytest.mark.parametrize("lines", [[b"x-filler: " + b"x" * 66_000], [b"x-%d: y" % number for number in range(8000)]])
async def test_large_heads_are_431_also_if_they_come_at_once(fast_path: bool, path: str, lines: list[bytes]) -> None:
    """The parser is given the end of the head before anybody counts."""
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        for body in (b"", b"[1]"):
            client = await gateway.raw()
            head = [f"POST {path} HTTP/1.1".encode(), b"host: g", b"content-length: %d" % len(body), *lines]
            await client.send(b"\r\n".join(head) + b"\r\n\r\n" + body)
            assert (await error_of(client))[0] == 431
        client = await gateway.raw()  # a large body is no large head
        await client.send(request_bytes(b"[" + b" " * 200_000 + b"1]", path))
        assert (await client.response())[0] in (400, 413)
        client.close()
        assert not worker.requests


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/abort_request"])
async def test_who_announces_far_too_much_is_refused_at_once(fast_path: bool, path: str) -> None:
    async with running_gateway([], fast_path=fast_path, max_body_bytes=1024) as gateway:
        client = await gateway.raw()
        await client.send(f"POST {path} HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999\r\n\r\n".encode())
        status, message = await error_of(client)
        assert (status, message) == (413, "The request body is larger than 1024 bytes.")


async def test_what_is_no_http_is_400(fast_path: bool) -> None:
    async with running_gateway([], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(b"\x16\x03\x01 not http\r\n\r\n")
        assert await error_of(client) == (400, "Invalid HTTP request received.")
        assert gateway.metric("requests_total", endpoint="connection", status="400") == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_slow_heads_are_408(fast_path: bool, path: str) -> None:
    clock = FakeClock()
    async with running_gateway([], fast_path=fast_path, clock=clock, head_timeout_s=5) as gateway:
        client = await gateway.raw()
        await client.send(f"POST {path} HTTP/1.1\r\nhost: g\r\n".encode())
        await until(lambda: connections(gateway) == 1, 5, "it is connected")
        await asyncio.sleep(0.1)
        for _ in range(2):
            gateway.server.close_idle_connections()
            await client.send(b"x-more: 1\r\n")
            await asyncio.sleep(0.1)
            clock.advance(4)
        gateway.server.close_idle_connections()
        assert (await error_of(client))[0] == 408


@pytest.mark.parametrize("path", [CHAT, "/abort_request"])
async def test_trickling_bodies_are_cut_and_steady_ones_are_not(fast_path: bool, path: str) -> None:
    clock = FakeClock()
    async with running_gateway([], fast_path=fast_path, clock=clock, body_timeout_s=5) as gateway:
        steady, trickling = await gateway.raw(), await gateway.raw()
        whole = request_bytes(b"{" + b" " * 400_000, path)
        for client in (steady, trickling):
            await client.send(whole[:300])
        await until(lambda: connections(gateway) == 2, 5, "they are connected")
        gateway.server.close_idle_connections()
        for step in range(1, 5):
            await steady.send(whole[300 + (step - 1) * 100_000 : 300 + step * 100_000])
            if step <= 2:
                await trickling.send(b" ")
            await asyncio.sleep(0.1)
            clock.advance(4)
            gateway.server.close_idle_connections()
        assert (await error_of(trickling))[0] == 408
        await steady.send(whole[300 + 400_000 :])
        assert (await steady.response())[0] in (400, 503)
        steady.close()


async def test_silent_connections_are_closed_and_busy_ones_are_not(fast_path: bool) -> None:
    clock = FakeClock()
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path, clock=clock) as gateway:
        silent, busy = await gateway.raw(), await gateway.raw()
        await until(lambda: connections(gateway) == 2, 5, "they are connected")
        for _ in range(4):
            await busy.send(request_bytes(chat_body()))
            assert (await busy.response())[0] == 200
            gateway.server.close_idle_connections()
            clock.advance(8)
        assert await silent.reader.read() == b""
        for client in (silent, busy):
            client.close()


async def test_connections_are_bounded(fast_path: bool) -> None:
    async with running_gateway([], fast_path=fast_path, max_connections=2) as gateway:
        first, second = await gateway.raw(), await gateway.raw()
        await until(lambda: connections(gateway) == 2, 5, "two are connected")
        assert (await error_of(await gateway.raw()))[0] == 503
        first.close()
        await until(lambda: connections(gateway) == 1, 5, "one has left")
        third = await gateway.raw()
        await third.send(b"GET /liveness HTTP/1.1\r\nhost: g\r\n\r\n")
        assert (await third.response())[0] == 200
        for client in (second, third):
            client.close()
