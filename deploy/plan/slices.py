"""Which parts of a long load are run: all of it, or slices spread evenly over it.

A slice begins with a warm-up, whose requests are run but not counted: it fills queues and batches, and brings caches up
to date. One fleet runs all slices after each other, so what it has cached and learned stays from one to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

_WARM_UP_SHARE = 0.25
_FIRST_WARM_UP_SHARE = 0.5  # caches are empty
_LONG_S = 120.0  # a slice should last, where the requests asked for allow it
_MIN_S = 20.0
_MIN_SLICES, _MAX_SLICES = 6, 48


@dataclass(frozen=True, slots=True)
class Slice:
    """Requests from `begin_s` on are run, those from `count_s` on are counted, up to `end_s`."""

    begin_s: float
    count_s: float
    end_s: float

    @property
    def counted_s(self) -> float:
        return self.end_s - self.count_s


def slices_of(duration_s: float, num_requests: int, sample_requests: int) -> list[Slice]:
    """Slices with about `sample_requests` requests in all, warm-up included; 0, or enough for all: everything."""
    if not sample_requests or num_requests <= sample_requests:
        return [Slice(0.0, 0.0, duration_s)]
    sampled_s = duration_s * sample_requests / num_requests
    count = int(min(max(sampled_s // _LONG_S, _MIN_SLICES), _MAX_SLICES))
    length_s = max(sampled_s / count, _MIN_S)
    if count * length_s >= duration_s:
        return [Slice(0.0, 0.0, duration_s)]
    found = []
    for index in range(count):
        begin_s = (index + 0.5) * duration_s / count - length_s / 2
        share = _WARM_UP_SHARE if index else _FIRST_WARM_UP_SHARE
        found.append(Slice(begin_s, begin_s + share * length_s, begin_s + length_s))
    return found
