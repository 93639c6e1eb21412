"""Replays a workload against one address, as its users would: sessions wait for answers and send them back."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson

from benchmarks.router_workers import MODEL
from benchmarks.router_workloads import Session, Workload

_LIMIT_BYTES = 2**20


@dataclass
class Experience:
    """What the clients saw. Times in seconds."""

    ttft_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    chunks: int = 0
    failed: int = 0


class Connections:
    """Keep-alive connections to one port, taken and given back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is open."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
        return await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT_BYTES)

    def give_back(self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """For the next request."""
        self._idle.append(connection)

    def close(self) -> None:
        """Close those that are idle."""
        for _, writer in self._idle:
            writer.close()


async def replay(workload: Workload, port: int, *, speed_up: float) -> Experience:
    """Every session of the workload, in its time over `speed_up`."""
    seen = Experience()
    connections = Connections(port)
    start_s = time.perf_counter()

    async def play(session: Session) -> None:
        await asyncio.sleep(session.arrival_s / speed_up - (time.perf_counter() - start_s))
        messages = [{"role": "system", "content": session.system}] if session.system else []
        for turn in session.turns:
            messages.append({"role": "user", "content": turn.text})
            answer = await _ask(connections, messages, turn.answer_tokens, seen)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})
            await asyncio.sleep(turn.pause_s / speed_up)

    await asyncio.gather(*map(play, workload.sessions))
    seen.wall_s = time.perf_counter() - start_s
    connections.close()
    return seen


async def _ask(
    connections: Connections, messages: list[dict[str, str]], max_tokens: int, seen: Experience
) -> str | None:
    """One streamed chat: its text, or None if it failed."""
    fields = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = orjson.dumps(fields)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
    sent_s = time.perf_counter()
    connection = await connections.take()
    try:
        connection[1].write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        _acknowledge_at_once(connection[1])
        said: list[str] = []
        async for event in _events(connection[0]):
            content = _content(event)
            if content:
                if not said:
                    seen.ttft_s.append(time.perf_counter() - sent_s)
                seen.chunks += 1
                said.append(content)
    except (OSError, EOFError, ValueError):
        connection[1].close()
        seen.failed += 1
        return None
    connections.give_back(connection)
    return "".join(said)


def _acknowledge_at_once(writer: asyncio.StreamWriter) -> None:
    """Some routers leave Nagle on: their first chunk would wait for a delayed acknowledgement of the head."""
    if hasattr(socket, "TCP_QUICKACK"):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _content(event: bytes) -> str:
    """The text of one event. Raises ValueError for one that reports an error."""
    data = event.removeprefix(b"data: ")
    if data == b"[DONE]":
        return ""
    fields = orjson.loads(data)
    if "choices" not in fields:
        raise ValueError(fields)
    return fields["choices"][0]["delta"].get("content") or "" if fields["choices"] else ""


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The events of a chunked answer. Raises ValueError if it is not one."""
    status = await reader.readuntil(b"\r\n\r\n")
    lowered = status.lower()
    if b" 200 " not in lowered.split(b"\r\n", 1)[0] or b"transfer-encoding: chunked" not in lowered:
        raise ValueError(status)
    buffer = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        buffer += (await reader.readexactly(size + 2))[:-2]
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            yield event
    await reader.readuntil(b"\r\n")
