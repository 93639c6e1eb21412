"""What a run says on standard error while it goes on: a bar with rates, on a terminal only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.serve.load import Tally
from common.clock import Clock

_EVERY_S = 0.5
_RECENT = 200  # requests


@asynccontextmanager
async def shown(tally: Tally, title: str, clock: Clock, *, disable: bool) -> AsyncIterator[None]:
    """While entered, the tally is shown."""
    console = Console(stderr=True)
    if disable or not console.is_terminal:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=1 / _EVERY_S) as progress:
        task = progress.add_task(title, total=tally.total, state="")
        ticker = asyncio.create_task(_follow(tally, clock, progress, task))
        try:
            yield
        finally:
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
            progress.update(task, completed=len(tally.outcomes))


async def _follow(tally: Tally, clock: Clock, progress: Progress, task: object) -> None:
    before_s, before, tokens_before = clock.now_s(), 0, 0
    while True:
        await asyncio.sleep(_EVERY_S)
        now_s, done, tokens = clock.now_s(), len(tally.outcomes), tally.output_tokens
        state = line(tally, (done - before) / (now_s - before_s), (tokens - tokens_before) / (now_s - before_s))
        progress.update(task, completed=done, state=state)  # type: ignore[arg-type]
        if now_s - before_s > 5:
            before_s, before, tokens_before = now_s, done, tokens


def line(tally: Tally, requests_per_s: float, tokens_per_s: float) -> str:
    """The state in words: rates as given, the rest by the last requests."""
    recent = tally.outcomes[-_RECENT:]
    ttfts = [outcome.ttft_s for outcome in recent if outcome.success and outcome.output_tokens]
    failed = sum(not outcome.success for outcome in tally.outcomes)
    parts = [f"{tally.in_flight} in flight", f"{requests_per_s:.1f} req/s"]
    parts += [f"{tokens_per_s:,.0f} tok/s"] if tally.output_tokens else []
    parts += [f"TTFT {1000 * float(np.median(ttfts)):.0f} ms"] if ttfts else []
    return " · ".join([*parts, *([f"{failed} failed"] if failed else [])])
