"""uvicorn's flow control without what only ASGI answers wait for, until one does."""

from __future__ import annotations

import asyncio
from functools import cached_property

from uvicorn.protocols.http.flow_control import FlowControl


class LeanFlowControl(FlowControl):
    """Of one connection. Its event takes 0.9 KiB, so that it is made when an answer first has to wait."""

    def __init__(self, transport: asyncio.Transport) -> None:  # instead of the base's, which makes the event
        self._transport = transport
        self.read_paused = False
        self.write_paused = False

    @cached_property
    def _is_writable_event(self) -> asyncio.Event:  # type: ignore[override]
        event = asyncio.Event()
        if not self.write_paused:
            event.set()
        return event
