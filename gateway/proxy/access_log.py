"""One line per generation request, collected and written in batches: a logging call per request costs too much."""

from __future__ import annotations

import logging
import time

import msgspec

from common.logs import Lines

_LOG = logging.getLogger("gateway.access")
_MAX_LINES = 10_000


class Access(msgspec.Struct, frozen=True, gc=False):
    """One request that is over. `worker`, `reason`: of its last attempt; empty: there was none."""

    request_id: str
    endpoint: str
    status: int
    worker: str
    reason: str
    duration_s: float

    def __str__(self) -> str:
        how = f"{self.worker or '-'} {self.reason or '-'} {self.duration_s:.3f}s"
        return f"{self.request_id} {self.endpoint} {self.status} {how}"


class AccessLog:
    """Off: does nothing. On: keeps lines until `flush`, at most ten thousand."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._lines: list[Access] = []
        self._times: list[float] = []

    def add(self, request_id: bytes, endpoint: str, status: int, worker: str, reason: str, duration_s: float) -> None:
        """A request is over."""
        self._lines.append(Access(request_id.decode("latin-1"), endpoint, status, worker, reason, duration_s))
        self._times.append(time.time())
        if len(self._lines) >= _MAX_LINES:
            self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        lines, self._lines = self._lines, []
        times, self._times = self._times, []
        if lines:
            _LOG.info("%s", Lines(lines, times))
