"""A replica's HTTP surface on a real port, over a fake scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import orjson
from prometheus_client import CollectorRegistry

from common.clock import MonotonicClock
from common.process import bind_port, url_of
from common.tracing.spans import SpanSink
from tests.helpers.fake_scheduler import FakeScheduler, ready_message
from worker.config import WorkerSettings
from worker.ipc.messages import GenerateRequest
from worker.launch.replica import HttpServer, http_config
from worker.server.sampling import SamplingDefaults
from worker.server.service import ModelFiles, Service
from worker.server.tokenizer import TextCodec


@dataclass
class App:
    """A serving replica, its scheduler's puppet strings, and a client."""

    service: Service
    scheduler: FakeScheduler
    client: httpx.AsyncClient
    tokenizer: TextCodec
    url: str

    async def post(self, path: str, **body: object) -> httpx.Response:
        """The whole answer to a JSON body."""
        return await self.client.post(path, json=body)

    async def events(self, path: str, **body: object) -> list[dict[str, object] | str]:
        """The events of a streamed answer: objects, and "[DONE]"."""
        response = await self.post(path, **body, stream=True)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, rest = response.text.split("\n\n")
        assert rest == ""
        data = [event.removeprefix("data: ") for event in events]
        return [text if text == "[DONE]" else orjson.loads(text) for text in data]


@asynccontextmanager
async def serving(
    tokenizer: TextCodec,
    answer: str | Sequence[int] | Callable[[GenerateRequest], Sequence[int]] = "hello",
    *,
    opened: bool = True,
    defaults: SamplingDefaults | None = None,
    traces: SpanSink | None = None,
    vector_of: Callable[[GenerateRequest], bytes] | None = None,
    **settings: object,
) -> AsyncIterator[App]:
    """Serve `answer` (a text, followed by EOS, or tokens, or what makes tokens) to every request; with `vector_of` an
    embedding model of 4 dimensions."""
    if isinstance(answer, str):
        tokens: Sequence[int] = [*tokenizer.encode(answer, add_special_tokens=False), 2]
    elif not callable(answer):
        tokens = answer
    scheduler = FakeScheduler(answer if callable(answer) else lambda request: tokens)
    scheduler.vector_of = vector_of
    chosen = WorkerSettings.model_validate({"model_path": "models/tiny", **settings})
    service = Service(chosen, "life-1", CollectorRegistry(), MonotonicClock(), scheduler.send, traces)
    scheduler.deliver = service.receive
    if opened:
        ready = ready_message(embedding_size=0 if vector_of is None else 4)
        service.open(ready, ModelFiles(tokenizer, defaults or SamplingDefaults()))
    listener = bind_port("127.0.0.1", 0)
    url = url_of(listener, tls=chosen.ssl_certfile is not None)
    server = HttpServer(http_config(service))
    tasks = [asyncio.create_task(server.serve([listener])), asyncio.create_task(scheduler.run())]
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            yield App(service, scheduler, client, tokenizer, url)
    finally:
        service.end("the test is over")
        server.should_exit = True
        await tasks[0]
        tasks[1].cancel()
        service.close()
