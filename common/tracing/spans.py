"""Spans as plain records, made when they are over. Who exports them is behind a protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from common.clock import Clock
from common.tracing.context import TraceContext

Attributes = Mapping[str, str | int | float | bool]


class SpanKind(Enum):
    """OpenTelemetry's kinds that occur here."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span that is over. Times in Unix nanoseconds; `parent_id` 0: none; `events`: name and time; `error`: what
    went wrong, empty if nothing did."""

    name: str
    context: TraceContext
    parent_id: int
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    events: Sequence[tuple[str, int]] = ()
    error: str = ""


class SpanSink(Protocol):
    """Takes spans on their way out of the process."""

    def put(self, spans: Sequence[Span]) -> None:
        """Take some. Never waits; drops them if there are too many."""
        ...


class WallTime:
    """Turns a clock's seconds into Unix nanoseconds. The monotonic clock is the same in all processes of a machine."""

    def __init__(self, clock: Clock) -> None:
        self._offset_ns = time.time_ns() - int(clock.now_s() * 1e9)

    def ns(self, clock_s: float) -> int:
        """Unix time in nanoseconds."""
        return self._offset_ns + int(clock_s * 1e9)
