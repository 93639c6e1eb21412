"""What one attempt showed about its worker. Three kinds of failure, and each is answered differently.

| outcome       | what happened                               | breaker | retried elsewhere        | the worker      |
|---------------|---------------------------------------------|---------|--------------------------|-----------------|
| CLIENT_FAULT  | 4xx; the client left                        | -       | no                       | as before       |
| BACK_PRESSURE | 429, 503                                    | -       | before the first byte    | is left to rest |
| REPLICA_FAULT | no connection, time-out, other 5xx, not     | counts  | before the first byte,   | is probed at    |
|               | HTTP, an answer that broke off              |         | but no time-out, no 504  | once            |
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

BACK_PRESSURE_STATUSES = frozenset({429, 503})
# Not 504: the worker may have worked as long as it was allowed to, and another one would do the same again.
RETRIED_STATUSES = frozenset({429, 500, 502, 503})

_LEAST_REST_S, _MOST_REST_S = 1.0, 10.0
_RETRY_AFTER = b"retry-after"


class Outcome(Enum):
    """The verdict on one attempt."""

    SERVED = "served"
    CLIENT_FAULT = "client_fault"
    BACK_PRESSURE = "back_pressure"
    REPLICA_FAULT = "replica_fault"


def outcome_of(status: int) -> Outcome:
    """The verdict on a whole answer with this status."""
    if status < 400:
        return Outcome.SERVED
    if status in BACK_PRESSURE_STATUSES:
        return Outcome.BACK_PRESSURE
    return Outcome.CLIENT_FAULT if status < 500 else Outcome.REPLICA_FAULT


def rest_of(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds for which a worker that answered with back-pressure is spared: its Retry-After, within 1 to 10.

    A date instead of a number counts as the least, as does its absence.
    """
    value = next((value for name, value in headers if name == _RETRY_AFTER), b"")
    seconds = float(value) if value.isdigit() and len(value) < 10 else 0.0
    return min(max(seconds, _LEAST_REST_S), _MOST_REST_S)
