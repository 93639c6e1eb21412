"""What a round of the event loop has to send, sent together at its end.

A write wakes whoever waits for the bytes, and where cores are few that is where ours goes, with its caches, after each
single write. Written together, a round's bytes wake each peer once for several requests, which then come back together.
"""

from __future__ import annotations

import asyncio


class Outbox:
    """Writes that wait for the end of the round, in order. A transport closed by then gets nothing."""

    def __init__(self) -> None:
        self._pending: list[tuple[asyncio.Transport, bytes]] = []

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send `data` soon, after what was given before."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self.flush)
        self._pending.append((transport, data))

    def flush(self) -> None:
        """Send everything now. Call it before anything else writes to or closes one of the transports."""
        pending, self._pending = self._pending, []
        for transport, data in pending:
            if not transport.is_closing():
                transport.write(data)
