"""A client may leave at any moment: what it asked for ends at once, here and in the scheduler."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.helpers.processes import until
from tests.helpers.replica_app import App, serving
from worker.ipc.messages import AbortRequest
from worker.server.tokenizer import Tokenizer

LONG = [5] * 400


async def connect(app: App, path: str, **body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request by hand, so that the connection is ours to cut."""
    host, port = app.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    return reader, writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("num_tokens", [0, 3], ids=["waiting", "running"])
async def test_leaving_aborts_every_sequence_within_a_second(
    tokenizer: Tokenizer, stream: bool, num_tokens: int
) -> None:
    async with serving(tokenizer, LONG) as app:
        app.scheduler.paused = True
        _, writer = await connect(app, "/v1/completions", prompt=["a", "b"], n=2, max_tokens=300, stream=stream)
        await until(lambda: len(app.scheduler.live) == 4, 5, "the scheduler has the request")
        for _ in range(num_tokens):
            app.scheduler.step()
            await asyncio.sleep(0)
        await leave(writer)
        await until(lambda: not app.scheduler.live, 1, "the scheduler drops it")
        assert len(app.scheduler.of_kind(AbortRequest)) == 4
        assert app.service.num_live == 0


async def test_leaving_in_mid_stream_stops_the_stream(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG) as app:
        reader, writer = await connect(app, "/generate", text="a", sampling_params={"max_new_tokens": 290}, stream=True)
        await reader.readuntil(b"data: ")
        app.scheduler.paused = True
        await leave(writer)
        await until(lambda: not app.scheduler.live, 1, "the scheduler drops it")


async def test_a_normal_end_aborts_nothing(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        for stream in (False, True):
            _, writer = await connect(app, "/v1/completions", prompt="a", stream=stream)
            await until(lambda: app.scheduler.received and not app.scheduler.live, 5, "the answer ends")
            await asyncio.sleep(0.05)
            await leave(writer)
        await asyncio.sleep(0.05)
        assert app.scheduler.of_kind(AbortRequest) == []


async def test_a_reader_that_stalls_holds_up_nobody(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG) as app:
        _, writer = await connect(app, "/generate", text="a", sampling_params={"max_new_tokens": 290}, stream=True)
        for _ in range(3):
            assert (await app.post("/v1/completions", prompt="a")).status_code == 200
        await until(lambda: app.service.num_live == 0, 10, "the stalled answer is complete")
        await leave(writer)


def live_ids(app: App) -> set[str]:
    """The clients' ids of what the scheduler has."""
    return {rid.rpartition("#")[0] for rid in app.scheduler.live}


async def test_abort_request_by_id_group_and_all(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG) as app:
        app.scheduler.paused = True
        bodies = [{"rid": "ab"}, {"rid": "a"}, {"rid": "group", "n": 2}, {"rid": "rest"}]
        asks = [asyncio.create_task(app.post("/v1/completions", prompt="x", **body)) for body in bodies]
        await until(lambda: len(app.scheduler.live) == 5, 5, "the scheduler has them")

        assert (await app.post("/abort_request", rid="unknown")).status_code == 200
        assert (await app.post("/abort_request")).status_code == 200
        assert len(app.scheduler.live) == 5
        await app.post("/abort_request", rid="a")  # not the one it is a prefix of
        assert live_ids(app) == {"ab", "group_0", "group_1", "rest"}
        await app.post("/abort_request", rid="group")
        assert live_ids(app) == {"ab", "rest"}
        await app.post("/abort_request", abort_all=True)
        assert app.scheduler.live == {}
        answers = [await ask for ask in asks]
    assert [answer.status_code for answer in answers] == [400] * 4
    assert {answer.json()["error"]["message"] for answer in answers} == {"The request was aborted."}
