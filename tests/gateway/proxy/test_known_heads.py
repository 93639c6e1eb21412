"""Known request heads: only what the parser took before, and only whole requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.endpoints import head_of
from gateway.proxy.known_heads import KnownHeads
from tests.helpers.fake_worker import DONE, FakeWorker
from tests.helpers.gateway_harness import CHAT, chat_body, request_bytes, running_gateway

HEAD = head_of("POST", CHAT, b"", [(b"host", b"gateway")])
LEARNED = request_bytes(b"hello")


def known() -> KnownHeads:
    heads = KnownHeads()
    heads.learn(LEARNED, HEAD)
    return heads


@pytest.mark.parametrize("body", [b"", b"x", b"hello", b"y" * 70_000])
def test_the_same_with_another_length_is_known(body: bytes) -> None:
    data = request_bytes(body)
    assert known().find(data) == (HEAD, len(data) - len(body))


@settings(deadline=None)
@given(st.integers(0, len(LEARNED) - 1), st.binary(max_size=2))
def test_nothing_else_is_known(at: int, other: bytes) -> None:
    changed = LEARNED[:at] + other + LEARNED[at + 1 :]
    found = known().find(changed)
    if found is not None:
        assert changed[: found[1]] == LEARNED[: found[1]]  # a change in the body


@pytest.mark.parametrize(
    "data",
    [
        LEARNED[:-1],
        LEARNED + b"P",
        LEARNED.replace(b": 5", b": +5"),
        LEARNED.replace(b": 5", b": 5 "),
        LEARNED.replace(b": 5", b": 5_"),
        LEARNED.replace(b": 5", b": 1e9999999999"),
        LEARNED.replace(b"content-length", b"Content-Length"),
        b"",
    ],
)
def test_doubtful_lengths_go_to_the_parser(data: bytes) -> None:
    assert known().find(data) is None


@pytest.mark.parametrize(
    "data",
    [
        request_bytes(b"hello", CHAT, "Content-Length: 5"),
        request_bytes(b"hello", CHAT, "transfer-encoding: chunked"),
        request_bytes(b"hello", CHAT, "x-a: 1\nx-b: 2"),
        request_bytes(b"hello", CHAT, "x-long: " + "y" * 3000),
        b"\r\n" + LEARNED,
        LEARNED.split(b"\r\n\r\n", maxsplit=1)[0],
    ],
)
def test_doubtful_heads_are_not_learned(data: bytes) -> None:
    heads = KnownHeads()
    heads.learn(data, HEAD)
    assert heads.find(data) is None


def test_heads_with_an_id_are_not_learned() -> None:
    data = request_bytes(b"hello", CHAT, "x-request-id: r1")
    heads = KnownHeads()
    heads.learn(data, head_of("POST", CHAT, b"", [(b"x-request-id", b"r1")]))
    assert heads.find(data) is None


def test_the_number_of_heads_is_bounded() -> None:
    heads = KnownHeads()
    for number in range(2000):
        heads.learn(request_bytes(b"hello", CHAT, f"x-number: {number}"), HEAD)
    found = [heads.find(request_bytes(b"hello", CHAT, f"x-number: {number}")) for number in range(2000)]
    assert found[-1] is not None
    assert sum(item is not None for item in found) <= 512


async def test_known_and_new_heads_on_one_connection() -> None:
    """Each way of cutting: whole, in pieces, two at once, a foreign endpoint in between, an unfinished one behind."""
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        client = await gateway.raw()
        bodies = [chat_body("a" * size, stream=size % 2 == 1) for size in range(1, 13)]
        for number, body in enumerate(bodies):
            data = request_bytes(body)
            if number % 4 == 1:
                await client.send_bytewise(data)
            elif number % 4 == 2:
                await client.send(b"GET /liveness HTTP/1.1\r\nhost: x\r\n\r\n" + data)
                assert (await client.response())[0] == 200
            elif number % 4 == 3:
                await client.send(data + data[:20])
                assert (await client.response())[0] == 200
                await client.send(data[20:])
            else:
                await client.send(data)
            status, _, answer = await client.response()
            assert status == 200
            assert answer.endswith(DONE) is (b'"stream": true' in body)
        client.close()
        twice = [body for number, body in enumerate(bodies) for _ in range(1 + (number % 4 == 3))]
        assert [request.body for request in worker.requests] == twice
        assert {request.header("content-length") for request in worker.requests} == {str(len(b)) for b in bodies}
