"""The sockets between a replica's frontend and its scheduler: ZMQ over ipc:// in a private directory, msgpack bytes.

The frontend creates the directory. Who receives binds and who sends connects: then a message sent before the other end
is there waits for it. Bytes that are no message are logged and dropped.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio

from common.errors import UserError
from worker.ipc.messages import FrontendMessage, GenerateRequest, SchedulerMessage

log = logging.getLogger(__name__)

_TO_SCHEDULER = "to-scheduler"
_TO_FRONTEND = "to-frontend"
_MAX_PATH_BYTES = 100  # a unix socket's path may have 107
_LINGER_MS = 2000  # how long close() waits for unsent messages

M = TypeVar("M")


class FrontendChannel:
    """The frontend's end: sends without blocking, receives on the event loop. Owns the private directory (0700)."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="canopy-ipc-"))
        if len(str(self.directory / _TO_SCHEDULER)) > _MAX_PATH_BYTES:
            shutil.rmtree(self.directory)
            raise UserError(f"The temporary directory {self.directory.parent} has too long a path; set TMPDIR.")
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = zmq.asyncio.Context.shadow(self._context).socket(zmq.PULL)
        _unlimited(self._push, self._pull)
        self._push.connect(_address(self.directory, _TO_SCHEDULER))
        self._pull.bind(_address(self.directory, _TO_FRONTEND))
        self._encoder = msgspec.msgpack.Encoder()
        self._decode = msgspec.msgpack.Decoder(SchedulerMessage).decode

    def send(self, message: FrontendMessage) -> None:
        """Queue a message for the scheduler; never blocks. Call it from the event loop's thread."""
        if isinstance(message, GenerateRequest):
            message = message.packed()
        self._push.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def messages(self) -> AsyncIterator[SchedulerMessage]:
        """What the scheduler sends, in its order, without end."""
        while True:
            message = _decoded(self._decode, await self._pull.recv())
            if message is not None:
                yield message

    def unlink(self) -> None:
        """Remove the directory once the scheduler is connected: even a SIGKILL then leaves no file behind."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        """Drop what is unsent, close, remove the directory. May be called twice."""
        self._push.close(linger=0)
        self._pull.close(linger=0)
        self._context.term()
        self.unlink()


class SchedulerChannel:
    """The scheduler's end: blocking, one thread."""

    def __init__(self, directory: Path) -> None:
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._push = self._context.socket(zmq.PUSH)
        _unlimited(self._push, self._pull)
        self._pull.bind(_address(directory, _TO_SCHEDULER))
        self._push.connect(_address(directory, _TO_FRONTEND))
        self._encoder = msgspec.msgpack.Encoder()
        self._decode = msgspec.msgpack.Decoder(FrontendMessage).decode

    def send(self, message: SchedulerMessage) -> None:
        """Queue a message for the frontend."""
        self._push.send(self._encoder.encode(message))

    def drain(self) -> list[FrontendMessage]:
        """Every message that has arrived, in order; empty if none has."""
        messages: list[FrontendMessage] = []
        while True:
            try:
                message = _decoded(self._decode, self._pull.recv(zmq.NOBLOCK))
            except zmq.Again:
                return messages
            if message is not None:
                messages.append(message)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a message is there, at most `timeout_s` seconds. True if one is."""
        return bool(self._pull.poll(round(timeout_s * 1000)))

    def close(self) -> None:
        """Close after what is queued has been sent, at most two seconds later."""
        self._pull.close(linger=0)
        self._push.close(linger=_LINGER_MS)
        self._context.term()


def _address(directory: Path, name: str) -> str:
    return f"ipc://{directory / name}"


def _unlimited(*sockets: zmq.Socket[Any]) -> None:
    """No high-water mark: a message is never dropped or waited for; admission bounds what is in flight."""
    for socket in sockets:
        socket.set_hwm(0)


def _decoded(decode: Callable[[bytes], M], data: bytes) -> M | None:
    try:
        return decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        log.warning("Dropped a message of %d bytes that is none of ours: %s", len(data), error)
        return None
