"""The client's side of one exchange, as the exchange sees it. Two implementations: ASGI and uvicorn's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.proxy.http1 import Headers, ResponseHead


class Downstream(Protocol):
    """Where one answer goes. Nothing here blocks; when too much is buffered it calls `Exchange.pause`."""

    def start(self, status: int, headers: Headers) -> None:
        """The head of an answer of our own; a content-length is among `headers`."""
        ...

    def start_relay(self, head: ResponseHead, extra: Headers) -> None:
        """The head of a worker's answer, and fields of ours. Without a content-length the body's end is not known."""
        ...

    def data(self, payload: bytes, framed: bytes | None) -> None:
        """Body bytes; `framed` as in Sink.on_data."""
        ...

    @property
    def relay(self) -> Callable[[bytes], None] | None:
        """Sends whole chunks of chunked coding at once, as they came, once the head is out. None: use `data`."""
        ...

    def flush(self) -> None:
        """Send what was given so far."""
        ...

    def end(self) -> None:
        """The body is complete."""
        ...

    def abort(self) -> None:
        """The body will not be completed: cut the connection so that the client can tell."""
        ...


def respond(downstream: Downstream, status: int, headers: Headers, body: bytes) -> None:
    """A whole answer at once."""
    downstream.start(status, [*headers, (b"content-length", str(len(body)).encode())])
    if body:
        downstream.data(body, None)
    downstream.end()
