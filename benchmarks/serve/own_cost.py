"""What the client itself costs, and whether it was the bottleneck: then the figures are its own, not the server's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

_TICK_S = 0.1  # often enough to see lags, and next to nothing of a core
_BUSY_SHARE = 0.9  # of a core
_LATE_S = 0.01
_LATE_SHARE = 0.05  # of the median TTFT: an event loop that late falsifies it


@dataclass(frozen=True, slots=True)
class OwnCost:
    """`cpu_s` of the client's one thread in `wall_s`; `lag_p99_s`: how late its event loop woke up."""

    cpu_s: float
    wall_s: float
    lag_p99_s: float

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    def complaint(self, median_ttft_s: float) -> str | None:
        """One sentence if the client was the bottleneck."""
        late = f"{1000 * self.lag_p99_s:.1f} ms late (p99)"
        if self.cpu_share >= _BUSY_SHARE:
            return (
                f"The client was a bottleneck: it used {self.cpu_share:.0%} of a core and woke up {late}, so latencies "
                "are the client's as much as the server's; spread the load over several clients, or use "
                "--disable-stream."
            )
        if self.lag_p99_s > max(_LATE_S, _LATE_SHARE * median_ttft_s):
            return (
                f"The client was kept waiting for a core: it used {self.cpu_share:.0%} of one, but woke up {late}, so "
                "latencies may be too long by as much; run it where a core is free."
            )
        return None


@asynccontextmanager
async def measured() -> AsyncIterator[Callable[[], OwnCost]]:
    """Watches the event loop that it is entered on; what it yields makes the result, after its end."""
    lags: list[float] = []
    ticker = asyncio.create_task(_tick(lags))
    cpu_s, wall_s = time.thread_time(), time.monotonic()
    found: list[OwnCost] = []
    try:
        yield lambda: found[0]
    finally:
        ticker.cancel()
        used_s, took_s = time.thread_time() - cpu_s, time.monotonic() - wall_s
        found.append(OwnCost(used_s, took_s, float(np.percentile(lags, 99)) if lags else 0.0))


async def _tick(lags: list[float]) -> None:
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        lags.append(max(0.0, time.monotonic() - due_s))
