"""Workers that die, dawdle, refuse or talk nonsense: what the client sees, and which worker is tried next."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from tests.helpers.fake_worker import DONE, FakeWorker, Received, Reply, answer, event
from tests.helpers.gateway_harness import CHAT, RunningGateway, chat_body, ready_workers, request_bytes, running_gateway
from tests.helpers.processes import until


async def cut_before_head(request: Received, reply: Reply) -> None:
    reply.cut()


async def busy(request: Received, reply: Reply) -> None:
    await reply.json({"error": {"message": "full"}}, 429, retry_after="7")


async def silent(request: Received, reply: Reply) -> None:
    await asyncio.sleep(60)


def events(body: bytes) -> list[bytes]:
    """Whole events of a stream."""
    assert body.endswith(b"\n\n")
    return body.removesuffix(b"\n\n").split(b"\n\n")


async def stream(gateway: RunningGateway) -> bytes:
    """A streamed chat, read to a clean end."""
    client = await gateway.raw()
    await client.send(request_bytes(chat_body(stream=True)))
    status, _, body = await client.response()
    assert status == 200
    client.close()
    return body


def assert_broken(body: bytes, relayed: list[bytes], code: str) -> None:
    """`body` is the relayed events, then one error event."""
    *before, last = events(body)
    assert before == [item.removesuffix(b"\n\n") for item in relayed]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == code
    assert DONE not in body


async def test_death_before_the_first_byte_is_retried_elsewhere(fast_path: bool) -> None:
    async with (
        FakeWorker(cut_before_head) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path) as gateway,
    ):
        answers = [await gateway.chat() for _ in range(6)]
        assert [item.status_code for item in answers] == [200] * 6
        assert len(good.requests) == 6
        assert gateway.metric("retries_total", cause="closed") == 6
        assert gateway.inflight == 0


async def test_each_worker_is_tried_once_at_most(fast_path: bool) -> None:
    async with (
        FakeWorker(cut_before_head) as a,
        FakeWorker(cut_before_head) as b,
        running_gateway([a, b], fast_path=fast_path, max_retries=9, health_interval_s=60) as gateway,
    ):
        reply = await gateway.chat()
        assert reply.status_code == 502
        assert reply.json()["error"]["code"] == "worker_failed"
        # A kept connection that is closed gets its request once more on a fresh one; that is no other attempt.
        assert gateway.metric("upstream_errors_total", kind="closed") == 2
        assert all(1 <= len(worker.requests) <= 2 for worker in (a, b))


@pytest.mark.parametrize("max_retries", [0, 1, 2])
async def test_retries_are_bounded(fast_path: bool, max_retries: int) -> None:
    async with FakeWorker(cut_before_head) as a, FakeWorker(cut_before_head) as b, FakeWorker(cut_before_head) as c:
        workers = [a, b, c]
        async with running_gateway(
            workers, fast_path=fast_path, max_retries=max_retries, health_interval_s=60
        ) as gateway:
            assert (await gateway.chat()).status_code == 502
            assert sum(bool(worker.requests) for worker in workers) == max_retries + 1


async def test_retry_budget_is_shared(fast_path: bool) -> None:
    async with (
        FakeWorker(cut_before_head) as bad,
        FakeWorker() as good,
        running_gateway(
            [bad, good],
            fast_path=fast_path,
            retry_budget_ratio=0,
            retry_budget_per_s=0.3,  # three are saved up
            health_interval_s=60,
        ) as gateway,
    ):
        statuses = [(await gateway.chat()).status_code for _ in range(10)]
        assert statuses[:3] == [200] * 3
        assert statuses.count(502) >= 3
        assert gateway.metric("retries_total", cause="closed") in (3, 4)


async def test_dead_worker_is_noticed_at_once_and_comes_back_by_probe(fast_path: bool) -> None:
    async with (
        FakeWorker() as a,
        FakeWorker() as b,
        running_gateway([a, b], fast_path=fast_path, health_interval_s=0.5) as gateway,
    ):
        life = gateway.gateway.registry.snapshot.get(a.url)
        await a.kill()
        answers = [await gateway.chat() for _ in range(4)]
        assert [item.status_code for item in answers] == [200] * 4
        dead = gateway.gateway.registry.snapshot.get(a.url)
        assert dead is not None and dead.status.value == "degraded" and dead.life == 0
        await a.start()
        await until(lambda: ready_workers(gateway.gateway) == 2, 5, "the worker is back")
        back = gateway.gateway.registry.snapshot.get(a.url)
        assert life is not None and back is not None and back.life > life.life
        before = len(a.requests)
        for _ in range(2):
            await gateway.chat()
        assert len(a.requests) > before


async def test_only_worker_dead_is_503_with_retry_after(fast_path: bool) -> None:
    async with (
        FakeWorker() as worker,
        running_gateway([worker], fast_path=fast_path, health_interval_s=60) as gateway,
    ):
        await worker.kill()
        for _ in range(2):
            reply = await gateway.chat()
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "1"
            assert reply.json()["error"]["type"] == "service_unavailable_error"


async def test_stream_cut_ends_with_an_error_event(fast_path: bool) -> None:
    whole = [event({"i": index}) for index in range(3)]

    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        for item in whole:
            await reply.chunk(item)
        await asyncio.sleep(0.05)
        reply.cut()

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        assert_broken(await stream(gateway), whole, "worker_failed")
        assert gateway.inflight == 0


@pytest.mark.parametrize("tail", [b"", b"5", b"14\r\ndata: {", b'a\r\ndata: {"i"\r\n', b"2\r\n\n\n"])
async def test_stream_cut_anywhere_shows_whole_events_only(fast_path: bool, tail: bytes) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event(1) + b"data: hal")
        await reply.chunk(b"f\n\n")
        await reply.raw(tail)
        await asyncio.sleep(0.05)
        reply.cut()

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        body = await stream(gateway)
        relayed = [event(1), b"data: half\n\n"]
        # A blank line alone is an event boundary like any other.
        assert_broken(body.replace(b"\n\n\n\n", b"\n\n"), relayed, "worker_failed")


async def test_stream_with_garbage_inside_ends_with_an_error_event(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event(1))
        await asyncio.sleep(0.05)
        await reply.raw(b"no-size\r\nnonsense\r\n")
        await asyncio.sleep(5)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        assert_broken(await stream(gateway), [event(1)], "worker_failed")


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_cut_answer_never_looks_complete(fast_path: bool, framing: str) -> None:
    async def script(request: Received, reply: Reply) -> None:
        if framing == "length":
            await reply.head(content_type="application/json", content_length="100")
            await reply.raw(b'{"half": ')
        else:
            await reply.head(content_type="application/json", transfer_encoding="chunked")
            await reply.chunk(b'{"half": ')
        await asyncio.sleep(0.05)
        reply.cut()

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        client = await gateway.raw()
        await client.send(request_bytes(chat_body()))
        with pytest.raises(asyncio.IncompleteReadError):
            await client.response()
        client.close()
        assert gateway.inflight == 0


NONSENSE_HEADS = (
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nx: a\nset-cookie: b\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
    b"x" * 70_000,
)


async def test_nonsense_heads_go_elsewhere(fast_path: bool) -> None:
    heads = list(NONSENSE_HEADS)

    async def script(request: Received, reply: Reply) -> None:
        await reply.raw(heads[0])
        await asyncio.sleep(5)

    async with (
        FakeWorker(script) as bad,
        FakeWorker() as good,
        running_gateway([bad, good], fast_path=fast_path, health_interval_s=60) as gateway,
    ):
        while heads:
            before = len(bad.requests)
            while len(bad.requests) == before:
                assert (await gateway.chat()).status_code == 200
            heads.pop(0)
        assert gateway.metric("upstream_errors_total", kind="garbage") == len(NONSENSE_HEADS)


async def test_bad_chunk_sizes_are_refused(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.head(content_type="application/json", transfer_encoding="chunked")
        await reply.raw(request.json["size"].encode() + b"\r\n" + b"x" * 5 + b"\r\n0\r\n\r\n")
        await asyncio.sleep(5)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        assert (await gateway.client.post(CHAT, content=chat_body(size="5"))).content == b"x" * 5
        for size in ("+5", "0x5", "1_0", "5 5", "", "-1", "g", "f" * 20):
            with pytest.raises(httpx.RemoteProtocolError):
                await gateway.client.post(CHAT, content=chat_body(size=size))


async def test_stale_connections_are_replaced_by_fresh_ones(fast_path: bool) -> None:
    """The pool holds several connections that the worker will not serve again."""

    async def script(request: Received, reply: Reply) -> None:
        await asyncio.sleep(0.05)
        await answer(request, reply)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        first = await asyncio.gather(*(gateway.chat() for _ in range(10)))
        worker.requests_per_connection = 1
        second = await asyncio.gather(*(gateway.chat() for _ in range(10)))
        assert [reply.status_code for reply in first + second] == [200] * 20
        assert gateway.metric("upstream_errors_total", kind="stale") == 0


async def test_bytes_on_an_idle_connection_are_never_an_answer(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.json({"n": 1})
        await reply.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n66")

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        for _ in range(5):
            assert (await gateway.chat()).json() == {"n": 1}


async def test_back_pressure_goes_elsewhere_and_is_passed_on_at_last(fast_path: bool) -> None:
    async with (
        FakeWorker(busy) as full,
        FakeWorker() as free,
        running_gateway([full, free], fast_path=fast_path) as gateway,
    ):
        assert [(await gateway.chat()).status_code for _ in range(4)] == [200] * 4
        assert ready_workers(gateway.gateway) == 2  # back-pressure is no failure
        free.script = busy
        reply = await gateway.chat()
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
        assert reply.json() == {"error": {"message": "full"}}


async def test_errors_of_workers_pass(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.json({"error": {"message": "no"}}, request.json["status"])

    async with (
        FakeWorker(script) as a,
        FakeWorker(script) as b,
        running_gateway([a, b], fast_path=fast_path) as gateway,
    ):
        for status in (400, 401, 404, 501, 504):
            reply = await gateway.client.post(CHAT, content=chat_body(status=status))
            assert (reply.status_code, reply.json()) == (status, {"error": {"message": "no"}})
        assert len(a.requests) + len(b.requests) == 5
        reply = await gateway.client.post(CHAT, content=chat_body(status=500))
        assert (reply.status_code, reply.json()) == (500, {"error": {"message": "no"}})
        assert len(a.requests) + len(b.requests) == 7  # both were asked
        assert ready_workers(gateway.gateway) == 2


async def test_first_byte_timeout_is_504_without_a_second_prefill(fast_path: bool) -> None:
    async with (
        FakeWorker(silent) as a,
        FakeWorker(silent) as b,
        running_gateway([a, b], fast_path=fast_path, first_byte_timeout_s=0.3) as gateway,
    ):
        start = time.monotonic()
        reply = await gateway.chat()
        assert time.monotonic() - start < 2
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "upstream_timeout")
        assert len(a.requests) + len(b.requests) == 1
        await until(lambda: a.active + b.active == 0, 1, "the worker was left")


@pytest.mark.parametrize("limit", ["idle_timeout_s", "total_timeout_s"])
async def test_stalled_stream_times_out(fast_path: bool, limit: str) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event(1))
        await asyncio.sleep(60)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path, **{limit: 0.4}) as gateway:
        assert_broken(await stream(gateway), [event(1)], "upstream_timeout")
        await until(lambda: worker.active == 0, 1, "the worker was left")


async def test_removed_worker_fails_its_streams_at_once(fast_path: bool) -> None:
    async def script(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event(1))
        await asyncio.sleep(60)

    async with FakeWorker(script) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        reading = asyncio.create_task(stream(gateway))
        await until(lambda: worker.active, 2, "the stream runs")
        await asyncio.sleep(0.05)
        gateway.gateway.registry.remove(worker.url)
        assert_broken(await reading, [event(1)], "worker_failed")


async def test_a_fault_of_our_own_is_500_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Not the client's fault, and not the end of its connection."""
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        route = gateway.gateway.forwarder.router.route

        def broken(*_: object) -> None:
            raise RuntimeError("for the test")

        client = await gateway.raw()
        for function, expected in ((broken, 500), (route, 200)):
            gateway.gateway.forwarder.router.route = function  # type: ignore[method-assign, assignment]
            await client.send(request_bytes(chat_body()))
            status, _, body = await client.response()
            assert (status, b"internal_error" in body) == (expected, expected == 500)
            assert gateway.inflight == 0
        client.close()
        assert "for the test" in caplog.text
