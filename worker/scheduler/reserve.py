"""How many tokens admission keeps free for outputs that are still to come: the seam between fixed and learned rules."""

from __future__ import annotations

from typing import Literal, Protocol

from common.clock import Clock
from worker.cache.pool import KvPool
from worker.scheduler.forecast import ForecastReserve
from worker.scheduler.request import Request
from worker.scheduler.rows import RequestTable
from worker.scheduler.token_ratio import NewTokenRatio


class OutputReserve(Protocol):
    """What running requests, and those about to run, are expected to still need of the KV pool, in tokens."""

    @property
    def learns(self) -> bool:
        """Whether it follows what it sees: --schedule-conservativeness auto."""
        ...

    @property
    def value(self) -> float:
        """new_token_ratio: the reserve for running requests as a share of all they may still produce."""
        ...

    @property
    def conservativeness(self) -> float:
        """--schedule-conservativeness now in force."""
        ...

    def begin(self) -> float:
        """An admission pass starts: tokens to keep free for the requests that run."""
        ...

    def charge(self, request: Request, extend_tokens: int) -> float:
        """Tokens to keep free on top if `request` ran too, beside its `extend_tokens` uncached prompt tokens."""
        ...

    def admit(self) -> None:
        """The request charged last runs too."""
        ...

    def decay(self) -> None:
        """A decode step found room for all its requests."""
        ...

    def reset(self) -> None:
        """The replica is idle."""
        ...

    def raise_after_retraction(self, generated_tokens: int, max_new_tokens: int, num_requests: int) -> None:
        """Sums over the requests that stay: tokens generated so far, tokens allowed, and their number."""
        ...

    def on_end(self, request: Request, num_outputs: int) -> None:
        """An admitted request ended, by whatever cause, with so many outputs."""
        ...


def make_reserve(
    schedule_conservativeness: float | Literal["auto"],
    pool: KvPool,
    table: RequestTable,
    clock: Clock,
    longest_tokens: int,
) -> OutputReserve:
    """By --schedule-conservativeness. `longest_tokens`: prompt and output of a request at most."""
    if schedule_conservativeness == "auto":
        return ForecastReserve(pool, table, clock, longest_tokens)
    return NewTokenRatio(schedule_conservativeness, table)
