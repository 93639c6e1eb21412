"""What the client itself costs, and whether it was the bottleneck: then the figures are its own, not the server's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

_TICK_S = 0.02
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
        late = self.lag_p99_s > max(_LATE_S, _LATE_SHARE * median_ttft_s)
        if self.cpu_share < _BUSY_SHARE and not late:
            return None
        return (
            f"The client was a bottleneck: it used {self.cpu_share:.0%} of a core and woke up "
            f"{1000 * self.lag_p99_s:.1f} ms late (p99), so latencies are too long by about that; give it a core of "
            "its own, spread the load over several clients, or use --disable-stream."
        )


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
