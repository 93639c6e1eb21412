"""The tuner put together: of several gateway processes the first one watches, and the others ask it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from common.clock import Clock
from common.tuning.report import as_object
from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.processes.siblings import Member, Siblings
from gateway.proxy.fetch import Fetcher
from gateway.tuning.watch import TuningWatch

_WHAT = "tuning"

Tell = Callable[[], Awaitable[bytes]]
"""The answer of GET /tuning as JSON; empty while nobody who watches answers."""


def make_tuning(
    settings: GatewaySettings,
    registry: Registry,
    fetcher: Fetcher,
    clock: Clock,
    collectors: CollectorRegistry,
    member: Member | None,
    siblings: Siblings | None,
) -> tuple[TuningWatch | None, Tell | None]:
    """(what this process has to run, how to answer); no answer at all if the tuner is off."""
    if not settings.tuning_interval_s:
        return None, None
    watch: TuningWatch | None = None
    if member is None or member.index == 0:
        watch = TuningWatch(
            registry,
            fetcher,
            clock,
            collectors,
            interval_s=settings.tuning_interval_s,
            window_s=settings.tuning_window_s,
        )

    def here() -> bytes:
        return b"" if watch is None else text_of(watch)

    async def tell() -> bytes:
        if watch is not None or siblings is None:
            return here()
        answers = await siblings.ask_others(_WHAT, {})
        return next(filter(None, answers.values()), b"")

    if siblings is not None:
        siblings.tell(_WHAT, lambda _: here())
    return watch, tell


def text_of(watch: TuningWatch) -> bytes:
    """What `canopy tune --json` prints, and the longest window."""
    return json.dumps({"window_s": watch.window_s, **as_object(watch.judged)}).encode()
