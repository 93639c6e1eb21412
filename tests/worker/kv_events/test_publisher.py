"""The publisher over real sockets, asked as subscribers of SGLang and vLLM ask, and for snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import zmq
import zmq.asyncio

from common.errors import UserError
from common.kv_events import (
    END_OF_REPLAY,
    SNAPSHOT,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEventsConfig,
    decode,
    sequence_frame,
    sequence_of,
)
from worker.ipc.messages import CacheRemoved, CacheStored
from worker.kv_events.publisher import EventPublisher
from worker.token_ids import pack_tokens

WAIT_S = 10.0


@asynccontextmanager
async def publishing(**config: object) -> AsyncIterator[EventPublisher]:
    """A publisher that answers."""
    publisher = EventPublisher(KvEventsConfig.of(config), "127.0.0.1", 2, lambda: 1.5)
    task = asyncio.create_task(publisher.answer_replays())
    try:
        yield publisher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        publisher.close()


@asynccontextmanager
async def socket(kind: int, endpoint: str | None) -> AsyncIterator[zmq.asyncio.Socket]:
    """A client's socket."""
    assert endpoint is not None
    context = zmq.asyncio.Context()
    client = context.socket(kind)
    client.connect(endpoint)
    try:
        yield client
    finally:
        client.close(linger=0)
        context.term()


async def replay(publisher: EventPublisher, asked: bytes) -> list[tuple[int, EventBatch]]:
    """What it sends again."""
    async with socket(zmq.REQ, publisher.config.replay_endpoint) as client, asyncio.timeout(WAIT_S):
        await client.send(asked)
        first = await client.recv_multipart()  # a REQ socket takes the first message only
    async with socket(zmq.DEALER, publisher.config.replay_endpoint) as client, asyncio.timeout(WAIT_S):
        await client.send_multipart((b"", asked))
        frames: list[tuple[int, EventBatch]] = []
        while True:
            empty, sequence, payload = await client.recv_multipart()
            assert empty == b""
            if sequence == END_OF_REPLAY:
                assert payload == b""
                break
            frames.append((sequence_of(sequence), decode(payload)))
    assert first[0] == sequence_frame(frames[0][0]) if frames else first == [END_OF_REPLAY, b""]
    return frames


def stored(*blocks: int, parent: int | None = None) -> CacheStored:
    return CacheStored(list(blocks), parent, pack_tokens([*range(2 * len(blocks))]))


async def test_what_changes_comes_in_the_published_format() -> None:
    async with publishing(topic="kv") as publisher, socket(zmq.SUB, publisher.config.endpoint) as client:
        client.subscribe(b"kv")
        async with asyncio.timeout(WAIT_S):
            while not await client.poll(20):  # until it is subscribed
                publisher.publish([stored(7, 8)])
            topic, sequence, payload = await client.recv_multipart()
    assert topic == b"kv" and sequence_of(sequence) >= 1
    assert msgspec.msgpack.decode(payload) == [
        1.5,
        [["BlockStored", [7, 8], None, [0, 1, 2, 3], 2, None, "GPU", None, None, None]],
        0,
    ]


async def test_missed_batches_are_sent_again_as_long_as_they_are_kept() -> None:
    async with publishing(buffer_steps=3) as publisher:
        for block in range(1, 6):
            publisher.publish([stored(block)])
        assert [number for number, _ in await replay(publisher, sequence_frame(4))] == [4, 5]
        assert [number for number, _ in await replay(publisher, sequence_frame(0))] == [3, 4, 5]
        assert await replay(publisher, sequence_frame(6)) == []


async def test_a_snapshot_is_the_present_content_and_the_number_it_belongs_to() -> None:
    async with publishing() as publisher:
        assert await replay(publisher, SNAPSHOT) == [(0, EventBatch(1.5, [AllBlocksCleared()], 0))]
        publisher.publish([stored(1, 2, 3), stored(4, parent=2), stored(5, parent=1)])
        publisher.publish([CacheRemoved([3])])
        [(number, batch)] = await replay(publisher, SNAPSHOT)
        assert number == 2
        assert batch.events == [
            AllBlocksCleared(),
            BlockStored([1, 2, 4], None, [0, 1, 2, 3, 0, 1], 2, medium="GPU"),
            BlockStored([5], 1, [0, 1], 2, medium="GPU"),
        ]
        assert [event for _, one in await replay(publisher, sequence_frame(2)) for event in one.events] == [
            BlockRemoved([3], "GPU")
        ]


async def test_a_large_snapshot_comes_in_pieces() -> None:
    async with publishing() as publisher:
        publisher.publish([stored(*range(1, 2001))])
        batches = await replay(publisher, SNAPSHOT)
        assert {number for number, _ in batches} == {1} and len(batches) == 4
        blocks = [block for _, one in batches for event in one.events for block in getattr(event, "block_hashes", [])]
        assert blocks == list(range(1, 2001))


async def test_nonsense_does_not_stop_it() -> None:
    async with publishing() as publisher, socket(zmq.DEALER, publisher.config.replay_endpoint) as client:
        await client.send_multipart((b"", b"short"))
        await client.send(b"alone")
        assert len(await replay(publisher, SNAPSHOT)) == 1


async def test_load_has_a_socket_of_its_own() -> None:
    async with publishing() as publisher, socket(zmq.SUB, publisher.config.load_endpoint) as client:
        client.subscribe(b"")
        async with asyncio.timeout(WAIT_S):
            while not await client.poll(20):
                publisher.publish_load({"loads": []})
            topic, _, payload = await client.recv_multipart()
    assert topic == b"load" and msgspec.msgpack.decode(payload) == {"loads": []}


async def test_an_endpoint_that_is_taken_is_one_sentence() -> None:
    async with publishing() as first:
        with pytest.raises(UserError, match="cannot bind endpoint tcp://127.0.0.1"):
            EventPublisher(KvEventsConfig.of({"endpoint": first.config.endpoint}), "127.0.0.1", 2, lambda: 0.0)


@pytest.mark.parametrize(
    ("config", "text"),
    [({"publisher": "kafka"}, "'kafka'"), ({"end": 1}, "unknown field `end`; its keys are publisher, endpoint")],
)
def test_a_configuration_that_is_wrong_says_so(config: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        KvEventsConfig.of(config)
