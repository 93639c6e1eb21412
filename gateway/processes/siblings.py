"""What the processes of one gateway tell each other, over sockets in a private directory.

Each process listens on one socket: it applies changes to the set of workers that were made elsewhere, tells which
workers were registered over HTTP (for a process that starts anew), and gives its metrics. Messages are msgpack behind
their length in four bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from common.exposition import merged
from gateway.fleet.control import Change, WorkerControl

_LOG = logging.getLogger("gateway.processes")
_TIMEOUT_S = 2.0
_LENGTH_BYTES = 4
_MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Member:
    """One of `count` processes, and the directory of their sockets, mode 0700."""

    folder: Path
    index: int
    count: int

    def socket(self, index: int) -> str:
        """Where process `index` listens."""
        return str(self.folder / f"{index}.sock")

    @property
    def others(self) -> list[int]:
        """All but this one."""
        return [index for index in range(self.count) if index != self.index]


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to a sibling. `change`: make it; else `what` is wanted, `since` an earlier answer."""

    change: Change | None = None
    what: str = ""
    since: int = 0


_QUESTIONS = msgspec.msgpack.Decoder(Question)
_CHANGES = msgspec.msgpack.Decoder(list[Change])
_METRICS, _ADDED = "metrics", "added"


class Siblings:
    """This process's part in the exchange. `render` gives its own metrics as Prometheus text, each sample with a label
    that names the process."""

    def __init__(self, member: Member, control: WorkerControl, render: Callable[[], bytes]) -> None:
        self._member = member
        self._control = control
        self._render = render
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self._tellers: dict[str, Callable[[int], bytes]] = {}

    def tell(self, what: str, teller: Callable[[int], bytes]) -> None:
        """Answer questions for `what` by `teller`, which is given their `since`."""
        self._tellers[what] = teller

    async def ask_others(self, what: str, since: Mapping[int, int]) -> dict[int, bytes]:
        """The answers of the other processes that are there, by their numbers; `since` likewise."""
        others = self._member.others
        answers = await asyncio.gather(*(self._ask(i, Question(what=what, since=since.get(i, 0))) for i in others))
        return {index: answer for index, answer in zip(others, answers, strict=True) if answer is not None}

    def announce(self, change: Change) -> None:
        """Tell the others, soon and in order. Who is away learns it when it starts."""
        self._changes.put_nowait(change)

    async def metrics(self) -> bytes:
        """The metrics of all processes that answer."""
        others = await asyncio.gather(*(self._ask(index, Question(what=_METRICS)) for index in self._member.others))
        return merged(text.decode() for text in (self._render(), *others) if text is not None).encode()

    async def run(self) -> None:
        """Listen, learn what the others know, pass on changes. For ever."""
        path = Path(self._member.socket(self._member.index))
        path.unlink(missing_ok=True)  # of an earlier life
        server = await asyncio.start_unix_server(self._serve, path)
        async with server:
            await self._learn()
            while True:
                question = Question(change=await self._changes.get())
                await asyncio.gather(*(self._ask(index, question) for index in self._member.others))

    async def _learn(self) -> None:
        for index in self._member.others:
            answer = await self._ask(index, Question(what=_ADDED))
            if answer is not None:
                for change in _CHANGES.decode(answer):
                    self._control.apply(change)
                return

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = _QUESTIONS.decode(await _read(reader))
            await _write(writer, self._answer(question))
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            _LOG.warning("another process of the gateway broke off: %s", error)
        finally:
            writer.close()

    def _answer(self, question: Question) -> bytes:
        if question.change is not None:
            self._control.apply(question.change)
            return b""
        teller = self._tellers.get(question.what)
        if teller is not None:
            return teller(question.since)
        return msgspec.msgpack.encode(self._control.added()) if question.what == _ADDED else self._render()

    async def _ask(self, index: int, question: Question) -> bytes | None:
        """A sibling's answer; None if it is not there."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._member.socket(index))
                with contextlib.closing(writer):
                    await _write(writer, msgspec.msgpack.encode(question))
                    return await _read(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return None


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    if length > _MAX_MESSAGE_BYTES:
        raise OSError(f"a message of {length} bytes")
    return await reader.readexactly(length)


async def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(_LENGTH_BYTES) + message)
    await writer.drain()
