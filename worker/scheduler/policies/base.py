"""What a queue policy is, and what all of them promise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from worker.scheduler.queue import Lane
from worker.scheduler.request import Request


class QueuePolicy(Protocol):
    """Orders the requests of one lane. Admission stops at the first that does not fit.

    Every policy starts with the lane's overdue requests, in lane order. So a request is passed by about MAX_OVERTAKEN
    later arrivals of its lane at most, however unlucky it is.
    """

    def order(self, lane: Lane) -> Iterable[Request]:
        """All requests of the lane, next first. The answer may be lazy; it is read before the lane changes."""
        ...


def split_overdue(lane: Lane) -> tuple[list[Request], list[Request]]:
    """The overdue requests of a lane, which are at its front, and the others."""
    requests = list(lane)
    count = 0
    while count < len(requests) and lane.is_overdue(requests[count]):
        count += 1
    return requests[:count], requests[count:]
