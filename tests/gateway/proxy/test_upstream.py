"""One connection to a worker, fed by hand: however an answer is cut into reads, the same comes out."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.chunked import ChunkedDecoder, payload_of
from gateway.proxy.http1 import ResponseHead
from gateway.proxy.outbox import Outbox
from gateway.proxy.pool import ConnectionPool
from gateway.proxy.upstream import Failure, UpstreamConnection
from tests.helpers.clock import FakeClock

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
events = st.sampled_from(
    [b"data: 1\n\n", "data: é漢😀\n\n".encode(), b'data: "0\\r\\n\\r\\n"\n\n', b"\r\n\r\n", b"x" * 300]
)


class Transport:
    """An open connection that leads nowhere."""

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Recorder:
    """A sink that remembers, and checks the order of what it hears."""

    def __init__(self) -> None:
        self.body = b""
        self.relayed = b""  # what would go out where whole chunks are passed on
        self.ends = 0
        self.failure: Failure | None = None
        self._unflushed = False

    def on_head(self, head: ResponseHead) -> None:
        assert head.event_stream and not self.ends

    def on_data(self, payload: bytes, framed: bytes | None) -> None:
        assert payload and not self.ends
        self.body += payload
        self.relayed += framed or b"%x\r\n%b\r\n" % (len(payload), payload)
        self._unflushed = True

    def on_chunk(self, framed: bytes) -> None:
        assert not self._unflushed and not self.ends
        self.body += payload_of(framed)
        self.relayed += framed

    def on_flush(self) -> None:
        self._unflushed = False

    def on_end(self) -> None:
        self.ends += 1

    def on_fail(self, failure: Failure) -> None:
        self.failure = failure


def connection() -> tuple[UpstreamConnection, Recorder]:
    """One that waits for an answer."""
    made = UpstreamConnection(ConnectionPool("http://w:1", FakeClock(), Outbox(), keep_alive_s=4, max_idle=4))
    made.connection_made(cast(Any, Transport()))
    sink = Recorder()
    made.send("POST", b"head", b"body", sink)
    return made, sink


@settings(deadline=None)
@given(st.lists(events, max_size=8), st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_however_a_stream_is_cut_the_same_comes_out(texts: list[bytes], cuts: list[int], at_chunks: bool) -> None:
    chunks = [b"%x\r\n%b\r\n" % (len(text), text) for text in texts]
    answer = HEAD + b"".join(chunks) + b"0\r\n\r\n"
    bounds = {0, len(answer), *(cut % len(answer) for cut in cuts)}
    if at_chunks:  # as workers mostly send
        bounds |= {len(HEAD) + sum(map(len, chunks[:number])) for number in range(len(chunks) + 1)}

    async def feed() -> Recorder:
        made, sink = connection()
        ordered = sorted(bounds)
        for start, end in zip(ordered, ordered[1:], strict=False):
            made.data_received(answer[start:end])
        return sink

    sink = asyncio.run(feed())
    assert (sink.body, sink.ends, sink.failure) == (b"".join(texts), 1, None)
    if sink.relayed:
        assert ChunkedDecoder().feed(sink.relayed)[0] == sink.body


@settings(deadline=None)
@given(st.integers(1, 60))
def test_a_stream_that_ends_early_fails(missing: int) -> None:
    answer = HEAD + b"9\r\ndata: 1\n\n\r\n" * 3 + b"0\r\n\r\n"

    async def feed() -> Recorder:
        made, sink = connection()
        made.data_received(answer[:-missing])
        made.connection_lost(None)
        return sink

    sink = asyncio.run(feed())
    assert sink.ends == 0 and sink.failure is not None


def test_many_interim_heads() -> None:
    async def feed() -> Recorder:
        made, sink = connection()
        made.data_received(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + HEAD + b"0\r\n\r\n")
        return sink

    assert asyncio.run(feed()).ends == 1
