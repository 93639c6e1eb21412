"""How long one request may take, in all and between its steps."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SWEEP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Bounds on one request, in seconds. `first_byte_s` counts from an attempt's start, `total_s` from the first's."""

    connect_s: float
    first_byte_s: float
    idle_s: float
    total_s: float

    @property
    def sweep_s(self) -> float:
        """How often to look: time-outs are late by at most this."""
        return min(MAX_SWEEP_S, min(self.first_byte_s, self.idle_s, self.total_s) / 4)

    def exceeded(self, *, age_s: float, silence_s: float, begun: bool) -> str | None:
        """What has taken too long, None if nothing has.

        `age_s`: since the request came. `silence_s`: since bytes of the answer last came; before the first ones
        (`begun` is False) since the attempt began.
        """
        if age_s > self.total_s:
            return f"no end of the answer within {self.total_s:g} s"
        if begun:
            return f"nothing from the worker for {self.idle_s:g} s" if silence_s > self.idle_s else None
        return f"no answer from the worker within {self.first_byte_s:g} s" if silence_s > self.first_byte_s else None
