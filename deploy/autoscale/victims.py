"""Which replica leaves when there is one too many: the one whose going costs least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that could leave."""

    replica_id: str
    incarnation: str
    ready: bool
    running_requests: int = 0


def least_valuable(candidates: Iterable[Candidate], cache_values: Mapping[str, float]) -> Candidate | None:
    """One that does not serve yet, if there is such; else the least valuable cache (tokens, by incarnation), then the
    fewest running requests. A cache of unknown value is kept as long as a known one is there. None: no candidates."""

    def cost(candidate: Candidate) -> tuple[bool, float, int, str]:
        value = cache_values.get(candidate.incarnation, float("inf"))
        return candidate.ready, value, candidate.running_requests, candidate.replica_id

    return min(candidates, key=cost, default=None)
