"""The two ways to wait for a generation: until it is whole, or event by event. Both notice a client that leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from typing import Protocol

from fastapi import Request, Response

from worker.server.answers import Answer
from worker.server.errors import RequestFault
from worker.server.http import DisconnectWatch, EventStream, event
from worker.server.streams import CLIENT_GONE, Generation


class Chunks(Protocol):
    """How one API writes a stream."""

    def news(self, answer: Answer) -> Iterable[bytes]:
        """Events for what is unread of an answer, and for its end if it has ended."""
        ...

    def end(self) -> Iterable[bytes]:
        """Events after the end of all answers."""
        ...


async def whole_reply(request: Request, generation: Generation) -> None:
    """Wait until every answer has ended. Raises RequestFault if one was aborted; the others are aborted too then."""
    with generation, closing(_watch(request, generation)):
        async for answer in generation.updates():
            if (fault := answer.fault()) is not None:
                raise fault


def error_event(fault: RequestFault) -> bytes:
    """OpenAI's event for a stream that failed."""
    return event(fault.body())


async def stream_reply(
    request: Request,
    generation: Generation,
    chunks: Chunks,
    fault_event: Callable[[RequestFault], bytes] = error_event,
) -> Response:
    """The answers as events. An abort before the first news is an HTTP error (RequestFault), so that a gateway may
    still try elsewhere; a later one is an error event, and no [DONE] follows it."""
    watch = _watch(request, generation)

    def close() -> None:
        watch.close()
        generation.abort(CLIENT_GONE, "The client left.")

    try:
        updates = generation.updates()
        first = await anext(updates)
        if (fault := first.fault()) is not None:
            raise fault
    except BaseException:
        close()
        raise
    return EventStream(_events(first, updates, chunks, fault_event), close)


async def _events(
    first: Answer, updates: AsyncIterator[Answer], chunks: Chunks, fault_event: Callable[[RequestFault], bytes]
) -> AsyncIterator[bytes]:
    for chunk in chunks.news(first):
        yield chunk
    async for answer in updates:
        if (fault := answer.fault()) is not None:
            yield fault_event(fault)
            return
        for chunk in chunks.news(answer):
            yield chunk
    for chunk in chunks.end():
        yield chunk


def _watch(request: Request, generation: Generation) -> DisconnectWatch:
    return DisconnectWatch(request, lambda: generation.abort(CLIENT_GONE, "The client left."))
