"""The queue in front of the workers: who may begin, who waits, who is turned away. Pure: time is an argument.

Invariants: never more than `max_concurrent` admitted at once; first come, first served within a priority; nobody begins
while somebody of the same or a higher priority waits.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from gateway.admission.bucket import TokenBucket

T = TypeVar("T")
_MAX_RETRY_AFTER_S = 60


class PlaceState(Enum):
    """Where one request is."""

    NEW = "new"
    WAITING = "waiting"
    ADMITTED = "admitted"
    OVER = "over"


LEGAL_TRANSITIONS: dict[PlaceState, frozenset[PlaceState]] = {
    PlaceState.NEW: frozenset({PlaceState.WAITING, PlaceState.ADMITTED, PlaceState.OVER}),
    PlaceState.WAITING: frozenset({PlaceState.ADMITTED, PlaceState.OVER}),
    PlaceState.ADMITTED: frozenset({PlaceState.OVER}),
    PlaceState.OVER: frozenset(),
}


@dataclass(slots=True, eq=False)
class Place(Generic[T]):
    """One request in the queue's books. A larger `priority` goes first. `body_bytes` count while it waits."""

    owner: T
    priority: int
    body_bytes: int
    arrival_s: float
    state: PlaceState = field(default=PlaceState.NEW, init=False)

    def move(self, state: PlaceState) -> None:
        """Go on to a state that may follow."""
        assert state in LEGAL_TRANSITIONS[self.state], (self.state, state)
        self.state = state


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """Bounds. `max_concurrent`: None = any number. `timeout_s`: how long one may wait."""

    max_concurrent: int | None = None
    size: int = 100
    max_bytes: int = 256 * 2**20
    timeout_s: float = 60.0


class AdmissionQueue(Generic[T]):
    """Owner of the number of admitted requests and of those that wait."""

    def __init__(self, rules: QueueRules, bucket: TokenBucket | None = None) -> None:
        self._rules = rules
        self._bucket = bucket
        # By priority; each in order of arrival, none empty. A plain dict's first key is slow to find after deletions.
        self._levels: dict[int, OrderedDict[Place[T], None]] = {}
        self._last_wait_s = 0.0  # of the last one that waited
        self.admitted = 0
        self.waiting = 0
        self.waiting_bytes = 0

    @property
    def retry_after_s(self) -> int:
        """What to tell those who are turned away: as long as the last one waited."""
        return min(max(math.ceil(self._last_wait_s), 1), _MAX_RETRY_AFTER_S)

    @property
    def oldest_arrival_s(self) -> float | None:
        """When the first of those that wait came; None: nobody waits."""
        return min((next(iter(level)).arrival_s for level in self._levels.values()), default=None)

    def enter(self, place: Place[T], now_s: float) -> list[Place[T]]:
        """Admit `place`, let it wait, or turn it away: its state tells (OVER: turned away).

        Returns those of lower priority, the newest first, that had to leave the full queue for it; they are OVER.
        """
        if not self.waiting and self._may_begin(now_s):
            self._admit(place)
            return []
        victims = self._make_room(place)
        if victims is None:
            place.move(PlaceState.OVER)
            return []
        for victim in victims:
            self._remove(victim)
            victim.move(PlaceState.OVER)
        place.move(PlaceState.WAITING)
        self._levels.setdefault(place.priority, OrderedDict())[place] = None
        self.waiting += 1
        self.waiting_bytes += place.body_bytes
        return victims

    def leave(self, place: Place[T]) -> None:
        """The request is over, whether it waited, ran or was turned away. May be called again."""
        if place.state is PlaceState.WAITING:
            self._remove(place)
        elif place.state is PlaceState.ADMITTED:
            self.admitted -= 1
        if place.state is not PlaceState.OVER:
            place.move(PlaceState.OVER)

    def next(self, now_s: float) -> Place[T] | None:
        """Admit the next one that waits, if it may begin now."""
        if not self.waiting or not self._may_begin(now_s):
            return None
        place = next(iter(self._levels[max(self._levels)]))
        self._remove(place)
        self._last_wait_s = now_s - place.arrival_s
        self._admit(place)
        return place

    def expire(self, now_s: float) -> list[Place[T]]:
        """Turn away those who have waited for too long."""
        expired: list[Place[T]] = []
        limit_s = now_s - self._rules.timeout_s
        for level in list(self._levels.values()):
            while level and (place := next(iter(level))).arrival_s <= limit_s:
                self._remove(place)
                place.move(PlaceState.OVER)
                expired.append(place)
        if expired:
            self._last_wait_s = self._rules.timeout_s
        return expired

    def due_s(self, now_s: float) -> float | None:
        """In how many seconds time alone changes something; None: never."""
        if not self.waiting:
            return None
        oldest_s = self.oldest_arrival_s
        assert oldest_s is not None
        due_s = oldest_s + self._rules.timeout_s - now_s
        if self._bucket is not None and self._has_room():
            due_s = min(due_s, self._bucket.wait_s(now_s))
        return max(due_s, 0.0)

    def _has_room(self) -> bool:
        limit = self._rules.max_concurrent
        return limit is None or self.admitted < limit

    def _may_begin(self, now_s: float) -> bool:
        return self._has_room() and (self._bucket is None or self._bucket.take(now_s))

    def _admit(self, place: Place[T]) -> None:
        place.move(PlaceState.ADMITTED)
        self.admitted += 1

    def _make_room(self, place: Place[T]) -> list[Place[T]] | None:
        """Whom to send away so that `place` finds room; None: it finds none."""
        rules, victims = self._rules, []
        places = self.waiting + 1
        size_bytes = self.waiting_bytes + place.body_bytes
        lower = self._lower(place.priority)
        while places > rules.size or size_bytes > rules.max_bytes:
            victim = next(lower, None)
            if victim is None:
                return None
            victims.append(victim)
            places -= 1
            size_bytes -= victim.body_bytes
        return victims

    def _lower(self, priority: int) -> Iterator[Place[T]]:
        for level in sorted(self._levels):
            if level >= priority:
                return
            yield from reversed(self._levels[level])

    def _remove(self, place: Place[T]) -> None:
        level = self._levels[place.priority]
        del level[place]
        if not level:
            del self._levels[place.priority]
        self.waiting -= 1
        self.waiting_bytes -= place.body_bytes
