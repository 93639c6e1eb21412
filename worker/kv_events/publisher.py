"""The sockets that tell what the prefix cache holds: PUB for what changes, ROUTER for what was missed, PUB for load.

The wire format and the questions to the ROUTER are those of common/kv_events.py. Everything runs on the event loop;
what a slow subscriber cannot take is dropped, and it will see the gap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from common.errors import UserError
from common.kv_events import (
    END_OF_REPLAY,
    LOAD_TOPIC,
    SEQUENCE_BYTES,
    SNAPSHOT,
    AllBlocksCleared,
    CacheEvent,
    EventBatch,
    KvEventsConfig,
    encode,
    sequence_frame,
    sequence_of,
)
from worker.ipc.messages import CacheChange
from worker.kv_events.mirror import Mirror

log = logging.getLogger(__name__)

_SNAPSHOT_BLOCKS = 512  # of one message: a few milliseconds of the event loop
_MAX_REPLAY_QUEUE = 100_000  # messages for one that asks; a snapshot must fit


class LoadPublisher:
    """The socket that tells the load. `host`: as in EventPublisher. Raises UserError if the endpoint cannot be bound.
    `config` tells where it is then."""

    def __init__(self, config: KvEventsConfig, host: str) -> None:
        given = config.load_endpoint
        endpoint = _anywhere(host) if given is None or given == "auto" else given
        self._sequence = -1
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)  # never blocks
        self._socket.set_hwm(config.hwm)
        try:
            bound = _bind(self._socket, "load_endpoint", endpoint)
        except UserError:
            self.close()
            raise
        self.config = msgspec.structs.replace(config, load_endpoint=bound)

    def publish_load(self, report: object) -> None:
        """Tell the load, as /v1/loads has it."""
        self._sequence += 1
        self._socket.send_multipart((LOAD_TOPIC, sequence_frame(self._sequence), msgspec.msgpack.encode(report)))

    def close(self) -> None:
        """Drop what is unsent and close. May be called twice."""
        self._socket.close(linger=0)
        self._context.term()


class EventPublisher:
    """Owns the sockets and the mirror. `host`: where endpoints go that the configuration leaves out.

    Raises UserError if an endpoint cannot be bound. `config` tells where they are then.
    """

    def __init__(self, config: KvEventsConfig, host: str, block_size: int, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._mirror = Mirror(block_size)
        self._topic = config.topic.encode()
        self._sequence = -1
        self._past: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)  # never blocks
        self._replay = zmq.asyncio.Context.shadow(self._context).socket(zmq.ROUTER)
        self._load: LoadPublisher | None = None
        for socket, queue in ((self._events, config.hwm), (self._replay, _MAX_REPLAY_QUEUE)):
            socket.set_hwm(queue)
        anywhere = _anywhere(host)
        try:
            bound = msgspec.structs.replace(
                config,
                endpoint=_bind(self._events, "endpoint", config.endpoint or anywhere),
                replay_endpoint=_bind(self._replay, "replay_endpoint", config.replay_endpoint or anywhere),
                block_size=block_size,
            )
            self._load = LoadPublisher(bound, host)
            self.config, self.publish_load = self._load.config, self._load.publish_load
        except UserError:
            self.close()
            raise
        self._publish([AllBlocksCleared()])  # who has followed an earlier life learns that it is over

    def publish(self, changes: Sequence[CacheChange]) -> None:
        """Tell what a step has changed."""
        self._publish(self._mirror.apply(changes))

    async def answer_replays(self) -> None:
        """Answer those who have missed something, for ever."""
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != SEQUENCE_BYTES:
                log.warning("Dropped a request for replay with %d frames.", len(frames))
                continue
            client, _, asked = frames
            for sequence, payload in self._asked(asked):
                await self._replay.send_multipart((client, b"", sequence, payload))
            await self._replay.send_multipart((client, b"", END_OF_REPLAY, b""))

    def close(self) -> None:
        """Drop what is unsent and close. May be called twice."""
        if self._load is not None:
            self._load.close()
        for socket in (self._events, self._replay):
            socket.close(linger=0)
        self._context.term()

    def _publish(self, events: list[CacheEvent]) -> None:
        self._sequence += 1
        payload = encode(EventBatch(self._now_s(), events, 0))
        self._past.append((self._sequence, payload))
        self._events.send_multipart((self._topic, sequence_frame(self._sequence), payload))

    def _asked(self, asked: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The messages of one answer."""
        if asked == SNAPSHOT:
            at = sequence_frame(self._sequence)
            for events in self._mirror.snapshot(_SNAPSHOT_BLOCKS):
                yield at, encode(EventBatch(self._now_s(), events, 0))
            return
        start = sequence_of(asked)
        for sequence, payload in list(self._past):
            if sequence >= start:
                yield sequence_frame(sequence), payload


def _anywhere(host: str) -> str:
    """Any free port at this address."""
    return f"tcp://{f'[{host}]' if ':' in host else host}:0"


def _bind(socket: zmq.Socket[Any], name: str, endpoint: str) -> str:
    """Bind; returns the endpoint with its real port."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise UserError(
            f"--kv-events-config: cannot bind {name} {endpoint} ({error.strerror}); name a free address of this host."
        ) from None
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.decode().rstrip("\0")
