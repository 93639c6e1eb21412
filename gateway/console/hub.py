"""The console's clock: once a second, while somebody looks, it asks all processes and makes one event for everybody."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from gateway.console.messages import Decision, Event, Point, Row, Slice
from gateway.console.view import Series, Speeds, changed, rows
from gateway.fleet.registry import Registry

_LOG = logging.getLogger("gateway.console")
INTERVAL_S = 1.0
MAX_SUBSCRIBERS = 16  # of one process
HISTORY = 300  # points
_KEPT_EVENTS = 120
_SHOWN_CHOICES = 40  # of one second

# Since when (by process) -> what each process has seen since, by its number.
AskAll = Callable[[Mapping[int, int]], Awaitable[dict[int, Slice]]]


class Full(Exception):
    """There are as many subscribers as there may be."""


class Hub:
    """Owner of the subscribers. `facts`: what the page is told once. `stops`: whether the gateway is to stop."""

    def __init__(
        self,
        registry: Registry,
        ask_all: AskAll,
        facts: Mapping[str, Any],
        stops: Callable[[], bool],
        *,
        interval_s: float = INTERVAL_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._ask_all = ask_all
        self._facts = facts
        self._stops = stops
        self._interval_s = interval_s
        self._wall_s = wall_s
        self._subscribers = 0
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()  # set, and replaced, with every event
        self._forget()

    def _forget(self) -> None:
        self._number = 0  # of the newest event
        self._event = b""
        self._rows: dict[str, Row] = {}
        self._series = Series()
        self._speeds = Speeds()
        self._since: dict[int, int] = {}
        self._history: deque[Point] = deque(maxlen=HISTORY)
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)

    @property
    def subscribers(self) -> int:
        """How many look."""
        return self._subscribers

    def subscribe(self) -> AsyncIterator[bytes]:
        """Server-sent events: the whole picture, then what changes. It ends when the gateway stops. Raises Full."""
        if self._subscribers >= MAX_SUBSCRIBERS:
            raise Full
        return self._follow()

    async def _follow(self) -> AsyncIterator[bytes]:
        if self._subscribers >= MAX_SUBSCRIBERS:  # since `subscribe`
            return
        self._subscribers += 1
        self._wanted.set()
        try:
            seen = 0
            while not self._stops():
                news = self._news
                if self._number != seen:
                    missed = seen == 0 or self._number != seen + 1
                    seen = self._number
                    yield self._whole() if missed else self._event
                else:
                    await news.wait()
            yield event("bye", {})
        finally:
            self._subscribers -= 1
            if not self._subscribers:
                self._wanted.clear()

    async def run(self) -> None:
        """Keep the clock, for ever. What goes wrong here must not take the gateway down."""
        while True:
            if not self._subscribers:
                self._forget()
            await self._wanted.wait()
            try:
                await self._tick()
            except Exception:
                _LOG.exception("the console could not be brought up to date")
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(self._interval_s)

    async def _tick(self) -> None:
        slices = await self._ask_all(self._since)
        self._since = {index: one.upto for index, one in slices.items()}
        old, self._rows = self._rows, rows(self._registry.snapshot, list(slices.values()), self._speeds)
        point = self._series.point(self._wall_s(), slices, self._rows)
        events = [one for part in slices.values() for one in part.events]
        self._history.append(point)
        self._events.extend(events)
        fields: dict[str, Any] = {
            "workers": changed(old, self._rows),
            "gone": [url for url in old if url not in self._rows],
            "point": point,
            "events": _latest(events),
            "processes": len(slices),
        }
        self._event = event("delta", fields)
        self._number += 1

    def _whole(self) -> bytes:
        fields = {
            **self._facts,
            "workers": list(self._rows.values()),
            "history": list(self._history),
            "events": list(self._events),
            "processes": len(self._since),
        }
        return event("snapshot", fields)


def _latest(events: list[Event]) -> list[Event]:
    """The newest choices that a page can show, and what ended, but of those that are left out."""
    choices = [one for one in events if isinstance(one, Decision)]
    left_out = {one.key for one in choices[:-_SHOWN_CHOICES]}
    return [one for one in events if one.key not in left_out]


def event(name: str, fields: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(fields))
