"""A worker made of scripts: a real HTTP server on a real socket that answers, dawdles, lies or dies as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MODEL = "fake-model"


@dataclass
class Received:
    """One request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply:
    """What a script writes with. `cut` drops the connection with a reset."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.keep_alive = True

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def raw_bytewise(self, data: bytes) -> None:
        for index in range(len(data)):
            await self.raw(data[index : index + 1])
            await asyncio.sleep(0)

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items())]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def stream_head(self) -> None:
        await self.head(content_type="text/event-stream", transfer_encoding="chunked")

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def last_chunk(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def json(self, fields: Any, status: int = 200, **headers: str) -> None:
        body = json.dumps(fields).encode()
        await self.head(status, content_type="application/json", content_length=str(len(body)), **headers)
        await self.raw(body)

    def cut(self) -> None:
        self.keep_alive = False
        self._writer.transport.abort()

    def close(self) -> None:
        """Close cleanly after what was written."""
        self.keep_alive = False


Script = Callable[[Received, Reply], Awaitable[None]]


def event(fields: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def answer(request: Received, reply: Reply) -> None:
    """The default script: a short completion, streamed if asked for."""
    if request.json.get("stream"):
        await reply.stream_head()
        for index in range(3):
            await reply.chunk(event({"choices": [{"delta": {"content": f"t{index}"}}]}))
        await reply.chunk(DONE)
        await reply.last_chunk()
    else:
        await reply.json({"choices": [{"message": {"role": "assistant", "content": "hello"}}]})


@dataclass
class FakeWorker:
    """Scripted worker. `script` answers generation requests; everything else has a plausible default."""

    script: Script = answer
    model: str = MODEL
    incarnation: str = "life-1"
    healthy: bool = True
    load: dict[str, Any] = field(default_factory=dict)
    max_total_num_tokens: int = 0
    other: dict[str, Script] = field(default_factory=dict)  # path -> script
    requests: list[Received] = field(default_factory=list)
    active: int = 0  # generation requests being answered
    aborted: int = 0  # of them, how many the peer left
    connections: int = 0  # accepted so far
    requests_per_connection: int | None = None  # more are met by a reset, as if the connection had just timed out
    port: int = 0
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> FakeWorker:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Die like a process that was killed: no listener, every connection reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_connections(self) -> None:
        """Reset every connection, busy or idle; go on listening."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            served = 0
            while await self._one(reader, writer, served):
                served += 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = [tuple(line.split(": ", 1)) for line in head[1:] if line]
        request = Received(method, target, [(key.lower(), value) for key, value in headers], b"")
        request.body = await reader.readexactly(int(request.header("content-length") or 0))
        if self.requests_per_connection is not None and served >= self.requests_per_connection:
            writer.transport.abort()
            return False
        reply = Reply(writer)
        path = target.partition("?")[0]
        if path in ("/v1/chat/completions", "/v1/completions", "/generate"):
            self.requests.append(request)
            await self._generate(request, reply, reader)
        elif path in self.other:
            self.requests.append(request)
            await self.other[path](request, reply)
        else:
            await self._control(path, reply)
        return reply.keep_alive

    async def _generate(self, request: Received, reply: Reply, reader: asyncio.StreamReader) -> None:
        """Run the script; stop it when the peer leaves."""
        self.active += 1
        script = asyncio.ensure_future(self.script(request, reply))
        watcher = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({script, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not script.done():
                self.aborted += 1
                raise ConnectionResetError
            script.result()
        except ConnectionError:
            if script.done() and not script.cancelled() and reply.keep_alive:
                self.aborted += 1
            raise
        finally:
            self.active -= 1
            for task in (script, watcher):
                task.cancel()
            with contextlib.suppress(Exception):
                await asyncio.gather(script, watcher, return_exceptions=True)

    async def _control(self, path: str, reply: Reply) -> None:
        if path == "/health":
            await reply.json({}, 200 if self.healthy else 503)
        elif path == "/v1/models":
            await reply.json({"object": "list", "data": [{"id": self.model, "object": "model"}]})
        elif path == "/server_info":
            info = {"incarnation": self.incarnation, "max_total_num_tokens": self.max_total_num_tokens}
            await reply.json({"model_path": self.model, **info})
        elif path == "/v1/loads":
            await reply.json({"loads": [self.load]})
        else:
            await reply.json({"error": {"message": "no such route"}}, 404)
