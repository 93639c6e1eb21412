"""The gate that generation requests pass on their way to a worker: limits of the caller's key, then the queue."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from common.clock import Clock
from common.errors import HttpFault
from common.logs import about_request
from gateway.admission.key_use import KeyUse, TooMuch
from gateway.admission.keys import ANYBODY, Caller, Headers, Keyring
from gateway.admission.metrics import AdmissionMetrics
from gateway.admission.queue import AdmissionQueue, Place, PlaceState

_LOG = logging.getLogger("gateway.admission")
PRIORITY_HEADER = b"x-canopy-priority"
_MAX_PRIORITY = 100
_FULL = "The gateway is full: as many requests wait as may."
_DISPLACED = "The gateway is full, and a request of a higher priority took this one's place."
_EXPIRED = "The request waited too long for its turn."


class Guest(Protocol):
    """A request at the gate."""

    @property
    def headers(self) -> Headers:
        """Its header fields, names in lower case."""
        ...

    @property
    def request_id(self) -> str:
        """What it is called in logs."""
        ...

    @property
    def body_bytes(self) -> int:
        """The length of its body."""
        ...

    def admitted(self) -> None:
        """It may begin. Called at most once, at once or later; not after `turn_away`, not after it left."""
        ...

    def turn_away(self, fault: HttpFault, retry_after_s: int | None) -> None:
        """It may not; tell the client. It leaves by this."""
        ...


class Gate:
    """Lets guests in. Each guest that came must leave, once, whatever happened to it."""

    def __init__(self, queue: AdmissionQueue[Guest], keyring: Keyring, clock: Clock, metrics: AdmissionMetrics) -> None:
        self._queue = queue
        self._keyring = keyring
        self._key_use = KeyUse()
        self._clock = clock
        self._metrics = metrics
        self._places: dict[Guest, tuple[Place[Guest], Caller]] = {}
        self._pump_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def come(self, guest: Guest) -> None:
        """A request comes: it is admitted, waits, or is turned away."""
        now_s = self._clock.now_s()
        caller = self._keyring.caller(guest.headers) or ANYBODY
        try:
            priority = _priority(guest.headers, caller)
            self._key_use.begin(caller, now_s)
        except HttpFault as fault:
            self._metrics.refused[fault.code or "bad_request"] += 1
            guest.turn_away(fault, fault.retry_after_s if isinstance(fault, TooMuch) else None)
            return
        place: Place[Guest] = Place(guest, priority, guest.body_bytes, now_s)
        self._places[guest] = place, caller
        for victim in self._queue.enter(place, now_s):
            self._turn_away(victim, _DISPLACED, "displaced")
        if place.state is PlaceState.ADMITTED:
            guest.admitted()
        elif place.state is PlaceState.OVER:
            self._turn_away(place, _FULL, "queue_full")
        else:
            self._set_timer()

    def leave(self, guest: Guest) -> None:
        """A request is over."""
        entry = self._places.pop(guest, None)
        if entry is None:
            return
        place, caller = entry
        self._key_use.end(caller)
        self._queue.leave(place)
        if self._queue.waiting and not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Let in who may begin now, turn away who has waited too long."""
        self._pump_is_due = True  # so that those who end at once do not call us
        now_s = self._clock.now_s()
        for late in self._queue.expire(now_s):
            self._turn_away(late, _EXPIRED, "queue_timeout")
        while (place := self._queue.next(now_s)) is not None:
            self._metrics.waited.observe(now_s - place.arrival_s)
            self._let_in(place)
        self._pump_is_due = False
        self._set_timer()

    def _let_in(self, place: Place[Guest]) -> None:
        """Nobody above us would hear of an error: it must neither stop the queue nor leave its client waiting."""
        try:
            place.owner.admitted()
        except Exception:
            _LOG.exception("a request that waited could not begin", extra=about_request(place.owner.request_id))
            if place.state is PlaceState.ADMITTED:
                fault = HttpFault(500, "The gateway could not begin the request.", code="internal_error")
                place.owner.turn_away(fault, None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._queue.due_s(self._clock.now_s())
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(due_s, self._pump)

    def _turn_away(self, place: Place[Guest], message: str, code: str) -> None:
        self._metrics.refused[code] += 1
        place.owner.turn_away(HttpFault(503, message, code=code), self._queue.retry_after_s)


def _priority(headers: Headers, caller: Caller) -> int:
    """The header's number, at most the key's; without a header the key's. Raises HttpFault."""
    most = caller.priority
    value = next((value for name, value in headers if name == PRIORITY_HEADER), None)
    if value is None:
        return most or 0
    digits = value.lstrip(b"-") if value[:2] != b"--" else b""
    if not digits.isdigit() or len(digits) > 3 or abs(int(value)) > _MAX_PRIORITY:
        text = f"{PRIORITY_HEADER.decode()} must be a whole number from -{_MAX_PRIORITY} to {_MAX_PRIORITY}."
        raise HttpFault(400, text, code="bad_priority")
    return int(value) if most is None else min(int(value), most)
