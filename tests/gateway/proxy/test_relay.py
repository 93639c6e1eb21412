"""Whatever bytes a worker answers with, and however they are cut, the client gets the same; over both data paths."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.fake_worker import DONE, FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import CHAT, chat_body, request_bytes, running_gateway


async def test_300_chunks_in_order(fast_path: bool) -> None:
    events = [event({"i": index, "tricky": "0\r\n\r\n"}) for index in range(300)] + [DONE]

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        for item in events:
            await reply.chunk(item)
        await reply.last_chunk()

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        answer = await gateway.chat(stream=True)
        assert answer.content == b"".join(events)
        assert answer.headers["content-type"] == "text/event-stream"


async def test_events_are_relayed_as_they_come(fast_path: bool) -> None:
    go_on = asyncio.Event()

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event("first"))
        await go_on.wait()
        await reply.chunk(event("second"))
        await reply.last_chunk()

    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], fast_path=fast_path) as gateway,
        gateway.client.stream("POST", CHAT, content=chat_body(stream=True)) as answer,
    ):
        pieces = answer.aiter_raw()
        assert await anext(pieces) == event("first")
        go_on.set()
        assert await anext(pieces) == event("second")


async def test_bytewise_both_ways(fast_path: bool) -> None:
    """Each byte of request and answer in a packet of its own, the parts of a UTF-8 character in chunks of their own."""
    text = event({"text": "aé漢😀"}) + DONE

    async def script(request: Received, reply: Reply) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = b"".join(b"1\r\n" + text[i : i + 1] + b"\r\n" for i in range(len(text)))
        await reply.raw_bytewise(head + chunks + b"0\r\n\r\n")

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        body = chat_body("ü", stream=True)
        await client.send_bytewise(request_bytes(body))
        status, _, answer = await client.response()
        assert (status, answer) == (200, text)
        assert worker.requests[0].body == body
        client.close()


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_large_bodies_both_ways(fast_path: bool, framing: str) -> None:
    big = bytes(range(256)) * 20_000  # 5 MB

    async def script(request: Received, reply: Reply) -> None:
        if framing == "length":
            await reply.head(content_length=str(len(big)))
            await reply.raw(big)
        elif framing == "close":
            await reply.head(connection="close")
            await reply.raw(big)
            reply.close()
        else:
            await reply.head(transfer_encoding="chunked")
            for start in range(0, len(big), 70_000):
                await reply.chunk(big[start : start + 70_000])
            await reply.last_chunk()

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        body = chat_body("x" * 5_000_000)
        answer = await gateway.client.post(CHAT, content=body)
        assert answer.content == big
        assert worker.requests[0].body == body


async def test_40_mb_request_passes(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        body = chat_body("x" * 40_000_000)
        assert (await gateway.client.post(CHAT, content=body)).status_code == 200
        assert worker.requests[0].body == body


async def test_extensions_and_trailers_are_dropped(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.raw(b"7;name=value\r\ndata: 1\r\n2 ; x\r\n\n\n\r\n0;last\r\nx-trailer: 1\r\nx-more: 2\r\n\r\n")

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        for _ in range(2):  # the connection is usable afterwards
            client = await gateway.raw()
            await client.send(request_bytes(chat_body(stream=True)))
            _, headers, body = await client.response()
            assert body == b"data: 1\n\n"
            assert "x-trailer" not in headers
            client.close()
        assert len(worker.requests) == 2


async def test_framing_belongs_to_the_request_not_to_the_connection(fast_path: bool) -> None:
    """Chunked, sized, empty and chunked again over one upstream connection."""

    async def script(request: Received, reply: Reply) -> None:
        kind = request.json["messages"][0]["content"]
        if kind == "chunked":
            await reply.stream_head()
            await reply.raw(b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")
        elif kind == "sized":
            await reply.json({"kind": kind})
        else:
            await reply.head(204)

    async with (
        FakeWorker(script) as worker,
        running_gateway([worker], fast_path=fast_path, health_interval_s=60) as gateway,
    ):
        before = worker.connections
        for kind, status in (("chunked", 200), ("sized", 200), ("empty", 204), ("chunked", 200), ("sized", 200)):
            answer = await gateway.chat(kind)
            expected = {"chunked": b"data: 1\n\n", "sized": b'{"kind": "sized"}', "empty": b""}[kind]
            assert (answer.status_code, answer.content) == (status, expected)
        assert worker.connections == before  # the probe's connection served all of them


async def test_interim_heads_are_skipped(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await reply.json({"ok": True})

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        answer = await gateway.chat()
        assert answer.json() == {"ok": True}
        assert "link" not in answer.headers


async def test_headers_pass_and_hop_by_hop_do_not(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.raw(
            b"HTTP/1.1 200 OK\r\nX-Worker: 7\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nKeep-Alive: timeout=5\r\n"
            b"Connection: keep-alive, X-Private\r\nX-Private: secret\r\nDate: today\r\nContent-Length: 2\r\n\r\n{}"
        )

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        sent = {
            "authorization": "Bearer key",
            "x-custom": "1",
            "te": "trailers",
            "proxy-authorization": "x",
            "connection": "keep-alive, x-hop",
            "x-hop": "1",
        }
        answer = await gateway.client.post(CHAT, content=chat_body(), headers=sent)
        assert answer.headers["x-worker"] == "7"
        assert answer.headers["date"] == "today"
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert not {"keep-alive", "x-private"} & set(answer.headers)
        received = worker.requests[0]
        assert (received.header("authorization"), received.header("x-custom")) == ("Bearer key", "1")
        assert received.header("host") == f"127.0.0.1:{worker.port}"
        names = [name for name, _ in received.headers]
        assert len(names) == len(set(names))
        assert not {"te", "proxy-authorization", "x-hop", "connection"} & set(names)


async def test_request_id_is_passed_on_and_echoed(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.json({}, x_request_id="the workers own")

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        given = await gateway.client.post(CHAT, content=chat_body(), headers={"x-request-id": "mine-1"})
        assert given.headers.get_list("x-request-id") == ["mine-1"]
        made = (await gateway.chat()).headers["x-request-id"]
        too_long = await gateway.client.post(CHAT, content=chat_body(), headers={"x-request-id": "a" * 200})
        ids = [request.header("x-request-id") for request in worker.requests]
        assert ids == ["mine-1", made, too_long.headers["x-request-id"]]
        assert len(made) == 16
        assert len(too_long.headers["x-request-id"]) == 16


async def test_route_header_names_the_worker(fast_path: bool) -> None:
    async with FakeWorker() as a, FakeWorker() as b, running_gateway([a, b], fast_path=fast_path) as gateway:
        for worker in (a, b, a):
            before = len(worker.requests)
            route = (await gateway.chat()).headers["x-canopy-route"]
            assert route == f"worker=127.0.0.1:{worker.port}; reason=round_robin; cached=0"
            assert len(worker.requests) == before + 1


async def test_many_streams_at_once(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        name = request.json["messages"][0]["content"]
        await reply.stream_head()
        for index in range(20):
            await reply.chunk(event(f"{name}-{index}"))
            await asyncio.sleep(0.001)
        await reply.last_chunk()

    async def one(gateway_port: int, name: str) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway_port)
        writer.write(request_bytes(chat_body(name, stream=True), CHAT, "connection: close"))
        answer = await reader.read()
        writer.close()
        return (
            answer.endswith(b"0\r\n\r\n")
            and [b'data: "%b-%d"\n\n' % (name.encode(), i) in answer for i in range(20)] == [True] * 20
        )

    async with (
        FakeWorker(script) as a,
        FakeWorker(script) as b,
        running_gateway([a, b], fast_path=fast_path) as gateway,
    ):
        assert not gateway.gateway.forwarder.metrics.answers  # the fast path's self-check counts for nothing
        good = await asyncio.gather(*(one(gateway.port, f"s{index}") for index in range(300)))
        assert sum(good) == 300
        assert gateway.inflight == 0
        assert len(a.requests) == len(b.requests) == 150
