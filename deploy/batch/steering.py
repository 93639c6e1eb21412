"""How many requests to have in flight, by the tuning guide's rule: every replica's queue in its healthy band, never
starved, never flooded. Pure: reports, sends and ends come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEALTHY_WAITING = (100, 2000)  # the guide's band of #queue-req
TARGET_WAITING = 112  # in the band, and below 128, where lpm falls back to arrival order


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What one ready replica reports. `waiting`: None if it is of a make that does not say."""

    running: int = 0
    waiting: int | None = None
    token_usage: float = 0.0


class Steering:
    """Owner of the limit on requests in flight: what runs at each replica, and the target waiting behind it.

    What runs and waits beyond our own requests is other people's; it takes from our room, down to one request a
    replica. Replicas without a report get `without_report` requests each.
    """

    def __init__(self, *, target_waiting: int = TARGET_WAITING, without_report: int, max_in_flight: int) -> None:
        self._target = target_waiting
        self._without_report = without_report
        self._max_in_flight = max_in_flight
        self._resting_until_s = 0.0
        self._limit = 0
        self.in_flight = 0

    def may_send(self, now_s: float) -> bool:
        """Whether one more request may go out."""
        return self.in_flight < min(self._limit, self._max_in_flight) and now_s >= self._resting_until_s

    def on_report(self, loads: Sequence[ReplicaLoad]) -> None:
        """The ready replicas' loads; none if the gateway could not be asked."""
        known = [(load.running, load.waiting) for load in loads if load.waiting is not None]
        silent = self._without_report * (len(loads) - len(known))
        theirs = max(0, sum(running + waiting for running, waiting in known) - self.in_flight)
        room = sum(running + self._target for running, _ in known) - theirs
        self._limit = max(room, len(known)) + silent

    def on_sent(self) -> None:
        """A request went out."""
        self.in_flight += 1

    def on_end(self) -> None:
        """An answer came, or none will."""
        self.in_flight -= 1

    def rest(self, until_s: float) -> None:
        """Send nothing before `until_s`: the gateway asked for it, or is not there."""
        self._resting_until_s = max(self._resting_until_s, until_s)
