"""Clients that pipeline, or send what is not plain; over both data paths."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.helpers.fake_worker import DONE, FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import CHAT, chat_body, request_bytes, running_gateway


async def test_pipelined_requests_are_answered_in_order(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        name = request.json["messages"][0]["content"]
        await asyncio.sleep(0.1 if name == "first" else 0)
        if request.json["stream"]:
            await reply.stream_head()
            await reply.chunk(event(name))
            await reply.last_chunk()
        else:
            await reply.json(name)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        bodies = [
            chat_body("first", stream=True),
            chat_body("second"),
            chat_body("third", stream=True),
            chat_body("fourth"),
        ]
        await client.send(b"".join(request_bytes(body) for body in bodies))
        answers = [await client.response() for _ in bodies]
        assert [answer[2] for answer in answers] == [event("first"), b'"second"', event("third"), b'"fourth"']
        await client.send(request_bytes(chat_body("fifth")))  # the connection goes on
        assert (await client.response())[2] == b'"fifth"'
        client.close()


async def test_mixed_endpoints_on_one_connection(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        for _ in range(3):
            await client.send(b"GET /liveness HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.response())[0] == 200
            await client.send(request_bytes(chat_body()))
            assert (await client.response())[0] == 200
        client.close()


async def test_expect_100_continue(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        body = chat_body()
        await client.send(request_bytes(body, CHAT, "expect: 100-continue").removesuffix(body))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.response())[0] == 200
        assert worker.requests[0].header("expect") is None
        client.close()


async def test_chunked_request_body(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        body = chat_body("x" * 3000)

        async def pieces() -> object:
            for start in range(0, len(body), 700):
                yield body[start : start + 700]

        answer = await gateway.client.post(CHAT, content=pieces())  # type: ignore[arg-type]
        assert answer.status_code == 200
        assert worker.requests[0].body == body
        assert worker.requests[0].header("content-length") == str(len(body))


async def test_http_1_0_client_gets_a_closed_connection(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(request_bytes(chat_body()).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await asyncio.wait_for(client.reader.read(), 2)
        assert answer.startswith(b"HTTP/1.1 200 ")
        client.close()


async def test_connection_close_is_honoured(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(request_bytes(chat_body(stream=True), CHAT, "connection: close"))
        _, headers, body = await client.response()
        assert headers["connection"] == "close"
        assert body.endswith(DONE)
        assert await asyncio.wait_for(client.reader.read(), 2) == b""
        client.close()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[1]", 400, None),
        (b'{"model": "\xff"}', 400, None),
        (b"[" * 100_000, 400, None),
        (chat_body(model="other"), 404, "model"),
    ],
)
async def test_refusals_have_openais_error_body(fast_path: bool, body: bytes, status: int, param: str | None) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        for _ in range(2):  # the connection stays usable
            await client.send(request_bytes(body, CHAT, "x-request-id: r1"))
            got, headers, answer = await client.response()
            error = json.loads(answer)["error"]
            assert (got, error["param"], headers["x-request-id"]) == (status, param, "r1")
            assert error["message"].endswith(".")
            assert set(error) == {"message", "type", "param", "code"}
        client.close()
        assert not worker.requests


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_limit_is_413(fast_path: bool, chunked: bool) -> None:
    async with (
        FakeWorker() as worker,
        running_gateway([worker], fast_path=fast_path, max_body_bytes=100_000) as gateway,
    ):
        body = chat_body("x" * 150_000)

        async def pieces() -> object:
            yield body

        answer = await gateway.client.post(CHAT, content=pieces() if chunked else body)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await gateway.chat()).status_code == 200
        assert len(worker.requests) == 1


async def test_far_too_large_a_body_is_not_read(fast_path: bool) -> None:
    async with (
        FakeWorker() as worker,
        running_gateway([worker], fast_path=fast_path, max_body_bytes=100_000) as gateway,
    ):
        client = await gateway.raw()
        await client.send(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n".encode())
        await client.send(b"x" * 300_000)
        status, headers, _ = await client.response()
        assert (status, headers["connection"]) == (413, "close")
        client.close()


async def test_endless_request_head_is_431() -> None:
    async with running_gateway([]) as gateway:
        client = await gateway.raw()
        await client.send(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode())
        for name in (b"a", b"b"):
            await client.send(b"".join(b"x-%b-%d: %b\r\n" % (name, number, b"y" * 1000) for number in range(35)))
            await asyncio.sleep(0.05)
        status, _, body = await client.response()
        assert (status, json.loads(body)["error"]["type"]) == (431, "invalid_request_error")
        client.close()


async def test_no_worker_at_all_is_503(fast_path: bool) -> None:
    async with running_gateway([], fast_path=fast_path) as gateway:
        start = time.monotonic()
        answer = await gateway.chat()
        assert time.monotonic() - start < 1
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "no_ready_worker"


async def test_other_methods_on_generation_endpoints(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        answer = await gateway.client.get(CHAT)
        assert answer.status_code in (404, 405)
        assert "error" in answer.json()


async def test_two_models(fast_path: bool) -> None:
    async with (
        FakeWorker(model="a") as a,
        FakeWorker(model="b") as b,
        running_gateway([a, b], fast_path=fast_path) as gateway,
    ):
        for model in ("a", "b", "b"):
            answer = await gateway.client.post(CHAT, content=chat_body(model=model))
            assert answer.status_code == 200
        assert (len(a.requests), len(b.requests)) == (1, 2)
        answer = await gateway.client.post(CHAT, content=b'{"messages": []}')
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        answer = await gateway.client.post("/generate", content=b'{"text": "x"}')
        assert answer.status_code == 400


async def test_an_offer_of_another_protocol_is_passed_over(fast_path: bool) -> None:
    """As Java's client makes it with each request."""

    async def script(request: Received, reply: Reply) -> None:
        assert not {"upgrade", "http2-settings", "connection"} & {name.lower() for name, _ in request.headers}
        await reply.json(request.json["messages"][0]["content"])

    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        for text in ("one", "two\r\nupgrade: three"):
            await client.send(request_bytes(chat_body(text), CHAT, *offer))
            status, _, body = await client.response()
            assert (status, json.loads(body)) == (200, text)
        client.close()


async def test_http_1_0_gets_no_chunks() -> None:
    """The fast path's; the other one leaves the framing to uvicorn."""

    async def script(request: Received, reply: Reply) -> None:
        if not request.json["stream"]:
            await reply.json("whole")
            return
        await reply.stream_head()
        for text in ("one", "two", DONE):
            await reply.chunk(text if text is DONE else event(text))
        await reply.last_chunk()

    async with FakeWorker(script) as worker, running_gateway([worker]) as gateway:
        for stream, body in ((True, event("one") + event("two") + DONE), (False, b'"whole"')):
            client = await gateway.raw()
            lines = ("connection: keep-alive",)
            await client.send(
                request_bytes(chat_body(stream=stream), CHAT, *lines).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
            )
            status, headers = await client.head()
            assert (status, headers["connection"]) == (200, "close")
            assert "transfer-encoding" not in headers
            assert await client.reader.read() == body
            client.close()
