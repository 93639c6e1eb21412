"""What a round of the loop sends: in order, together, and nothing to a connection that is closed by then."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.proxy.outbox import Outbox
from tests.helpers.fake_worker import FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import chat_body, request_bytes, running_gateway


class Transport:
    """Keeps what is written, into a list that several may share."""

    def __init__(self, written: list[bytes]) -> None:
        self._written = written
        self.closing = False

    def write(self, data: bytes) -> None:
        self._written.append(data)

    def is_closing(self) -> bool:
        return self.closing


async def test_writes_go_out_in_order_at_the_end_of_the_round() -> None:
    written: list[bytes] = []
    a, b = (cast(asyncio.Transport, Transport(written)) for _ in range(2))
    outbox = Outbox()
    for transport, data in ((a, b"1"), (b, b"2"), (a, b"3")):
        outbox.write(transport, data)
    assert written == []
    await asyncio.sleep(0)
    assert written == [b"1", b"2", b"3"]
    outbox.write(b, b"4")
    outbox.flush()
    outbox.write(a, b"5")
    assert written == [b"1", b"2", b"3", b"4"]
    await asyncio.sleep(0)
    assert written == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_closed_connection_gets_nothing_and_spoils_nothing() -> None:
    written: list[bytes] = []
    closed, open_ = Transport(written), Transport(written)
    outbox = Outbox()
    outbox.write(cast(asyncio.Transport, closed), b"1")
    outbox.write(cast(asyncio.Transport, open_), b"2")
    closed.closing = True
    await asyncio.sleep(0)
    assert written == [b"2"]


async def test_what_a_write_causes_to_be_written_is_not_lost() -> None:
    """A full transport calls back from within its write."""
    outbox, written = Outbox(), list[bytes]()

    class Full(Transport):
        def write(self, data: bytes) -> None:
            super().write(data)
            if data == b"1":
                outbox.write(cast(asyncio.Transport, self), b"3")

    full = cast(asyncio.Transport, Full(written))
    outbox.write(full, b"1")
    outbox.write(full, b"2")
    await asyncio.sleep(0.01)
    assert written == [b"1", b"2", b"3"]


async def test_an_answer_is_out_before_garbage_behind_its_request_is_refused() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        client = await gateway.raw()
        await client.send(request_bytes(chat_body()))
        assert (await client.response())[0] == 200
        await client.send(request_bytes(b"{") + b"NOT HTTP\r\n\r\n")
        answer = await asyncio.wait_for(client.reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"not valid JSON" in answer
        assert answer.count(b"HTTP/1.1 400 ") == 2
        client.close()


async def test_the_last_answers_are_out_when_the_gateway_stops() -> None:
    async def endless(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event("x"))
        await asyncio.sleep(60)

    async with FakeWorker(endless) as worker:
        async with running_gateway([worker]) as gateway:
            client = await gateway.raw()
            await client.send(request_bytes(chat_body(stream=True)))
            assert await client.reader.readuntil(event("x"))
            gateway.gateway.forwarder.shut_down()
        assert b"shutting down" in await asyncio.wait_for(client.reader.read(), 5)
        client.close()
