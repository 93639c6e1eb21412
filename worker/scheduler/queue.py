"""The waiting queue: one lane for each priority, in arrival order, with retracted requests at the front of their lane.
Constant cost for each change."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from worker.scheduler.constants import MAX_OVERTAKEN
from worker.scheduler.request import Request


class Lane:
    """Waiting requests of one rank.

    By arrival, a request's turn comes when `turn` others have left the lane. One that still waits MAX_OVERTAKEN
    departures later is overdue, as is one that was retracted: its work so far should not be lost to others. Overdue
    requests are always the first of the lane.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._num_arrived = 0
        self._num_left = 0  # of those arrived; who comes back after a retraction does not leave twice

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    @property
    def first(self) -> Request:
        return next(iter(self._requests.values()))

    @property
    def last(self) -> Request:
        return next(reversed(self._requests.values()))

    def is_overdue(self, request: Request) -> bool:
        """Whether a request of this lane goes before all others, whatever the policy."""
        return request.num_retractions > 0 or self._num_left - request.turn >= MAX_OVERTAKEN

    def append(self, request: Request) -> None:
        """A new request."""
        request.turn = self._num_arrived
        self._num_arrived += 1
        self._requests[request.rid] = request

    def push_front(self, request: Request) -> None:
        """A retracted request."""
        self._requests[request.rid] = request
        self._requests.move_to_end(request.rid, last=False)

    def remove(self, request: Request) -> None:
        del self._requests[request.rid]
        self._num_left += not request.num_retractions


class WaitingQueue:
    """Requests without a row. `by_rank`: more urgent ranks go before all others; otherwise there is one lane."""

    def __init__(self, *, by_rank: bool) -> None:
        self._by_rank = by_rank
        self._lanes: dict[int, Lane] = {}  # none of them empty
        self._ranks: list[int] = []  # sorted
        self._length = 0
        self.num_prompt_tokens = 0
        self.num_retracted = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self.lanes())

    def lanes(self) -> list[Lane]:
        """The lanes, most urgent first; never empty ones."""
        return [self._lanes[rank] for rank in self._ranks]

    @property
    def first(self) -> Request | None:
        """The most urgent request, by arrival."""
        return self._lanes[self._ranks[0]].first if self._ranks else None

    @property
    def last(self) -> Request | None:
        """The least urgent request, by arrival."""
        return self._lanes[self._ranks[-1]].last if self._ranks else None

    def append(self, request: Request) -> None:
        """A new request."""
        self._lane_of(request).append(request)
        self._count(request, 1)

    def push_front(self, request: Request) -> None:
        """A retracted request."""
        self._lane_of(request).push_front(request)
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        lane = self._lane_of(request)
        lane.remove(request)
        if not len(lane):
            del self._lanes[lane.rank]
            self._ranks.remove(lane.rank)
        self._count(request, -1)

    def _lane_of(self, request: Request) -> Lane:
        rank = request.rank if self._by_rank else 0
        lane = self._lanes.get(rank)
        if lane is None:
            lane = self._lanes[rank] = Lane(rank)
            insort(self._ranks, rank)
        return lane

    def _count(self, request: Request, change: int) -> None:
        self._length += change
        if request.num_retractions:
            self.num_retracted += change
        self.num_prompt_tokens += change * request.prompt_len
