"""A client that costs little: keep-alive connections that send chats, and count what comes back."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

from benchmarks.gateway_workers import MODEL

_LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Outcome:
    """Of one phase. Times in seconds."""

    bad: int = 0
    chunks: int = 0
    latencies_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0


def bodies(count: int, *, stream: bool, size_bytes: int = 450) -> list[bytes]:
    """Whole HTTP requests with different texts."""
    rng = random.Random(1)
    made = []
    for _ in range(count):
        fields = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": ""}]}
        padding = size_bytes - len(json.dumps(fields))
        fields["messages"] = [{"role": "user", "content": rng.randbytes(padding // 2).hex()}]
        body = json.dumps(fields).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        made.append(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return made


class Connection(asyncio.Protocol):
    """One keep-alive connection: `ask` sends a request and waits for its whole answer."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._buffer = b""
        self._expected: int | None = None  # bytes of head and body, None: chunked or not known yet
        self._chunked = False
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    async def ask(self, request: bytes) -> None:
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._buffer, self._expected, self._chunked = b"", None, False
        self._sent_s = time.perf_counter()
        self._transport.write(request)
        await self._waiter

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._chunked:
            data = self._buffer = self._buffer + data
            if self._expected is None and not self._read_head():
                return
        if self._chunked:
            self._read_chunks(data)
        elif self._expected is not None and len(self._buffer) >= self._expected:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._outcome.bad += 1
            self._done()

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self._buffer[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            self._outcome.bad += 1
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self._expected = end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0])
        else:
            self._chunked = True
        return True

    def _read_chunks(self, data: bytes) -> None:
        count = data.count(b"data: {")
        if count and len(self._outcome.ttfts_s) < 10**6 and self._sent_s:
            self._outcome.ttfts_s.append(time.perf_counter() - self._sent_s)
            self._sent_s = 0.0
        self._outcome.chunks += count
        self._buffer = (self._buffer + data)[-len(_LAST_CHUNK) :]
        if self._buffer == _LAST_CHUNK:
            self._done()

    def _done(self) -> None:
        if self._sent_s:
            self._outcome.latencies_s.append(time.perf_counter() - self._sent_s)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def run(port: int, *, connections: int, requests: int, stream: bool) -> Outcome:
    """Send `requests`, evenly over `connections`, each as soon as the one before it is answered."""
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    made = bodies(min(requests, 2000), stream=stream)
    links = [
        (await loop.create_connection(lambda: Connection(outcome), "127.0.0.1", port))[1] for _ in range(connections)
    ]

    async def worker(index: int, link: Connection) -> None:
        for number in range(index, requests, connections):
            await link.ask(made[number % len(made)])

    start_s = time.perf_counter()
    await asyncio.gather(*(worker(index, link) for index, link in enumerate(links)))
    outcome.wall_s = time.perf_counter() - start_s
    for link in links:
        link.close()
    return outcome
