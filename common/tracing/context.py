"""Identities of traces and spans, and how they travel between processes: W3C Trace Context, version 00."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

TRACEPARENT = "traceparent"
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span's place: 128 and 64 bits, neither zero. `sampled`: whether the trace is recorded."""

    trace_id: int
    span_id: int
    sampled: bool

    def child(self) -> TraceContext:
        """A new span of the same trace."""
        return TraceContext(self.trace_id, _bits(64), self.sampled)

    def header(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def root(*, sampled: bool) -> TraceContext:
    """The first span of a new trace."""
    return TraceContext(_bits(128), _bits(64), sampled)


def parse_traceparent(value: str) -> TraceContext | None:
    """The span that a `traceparent` names; None if it is not one. Later versions are read as far as they are known."""
    match = _HEADER.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def decide(parent: TraceContext | None, ratio: float) -> TraceContext:
    """The context of a request that comes in: below its client's span, whose decision counts; else a new trace, of
    which the share `ratio` is recorded."""
    return parent.child() if parent is not None else root(sampled=random.random() < ratio)


def _bits(number: int) -> int:
    return random.getrandbits(number) or 1
