"""The settings that experiments may touch, and how far. Everything else is out of reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import UserError

Value = int | float | str
Change = Mapping[str, Value]
"""New values by flag name without dashes in front, as findings have them."""

LARGEST_FACTOR = 4.0  # of a count, in one experiment


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`. `multiple`: counts are multiples of it. `factor`: most growth in one experiment,
    and the inverse most shrinking; None: any."""

    low: float
    high: float
    multiple: int | None = None  # None: not a count
    factor: float | None = None

    def nearest(self, value: float, now: Value | None) -> Value:
        """The allowed value nearest to `value`, where the setting is `now`."""
        if self.factor is not None and isinstance(now, int | float) and now > 0:
            value = min(max(value, now / self.factor), now * self.factor)
        value = min(max(value, self.low), self.high)
        if self.multiple is None:
            return float(f"{value:.3g}")
        return max(int(self.low), int(value) // self.multiple * self.multiple)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Words:
    """One of these words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " or ".join(self.words)


BOUNDS: Mapping[str, Range | Words] = {
    "schedule-conservativeness": Range(0.1, 2.0),
    "mem-fraction-static": Range(0.5, 0.94),
    "chunked-prefill-size": Range(512, 16_384, multiple=512, factor=LARGEST_FACTOR),
    "max-running-requests": Range(8, 4096, multiple=1, factor=LARGEST_FACTOR),
    "cuda-graph-max-bs": Range(8, 768, multiple=8),
    "schedule-policy": Words(("fcfs", "lpm")),
}


def nearest(flag: str, value: Value, now: Value | None) -> Value | None:
    """The allowed value of a flag nearest to `value`; None if the flag, or the word, is out of reach."""
    bound = BOUNDS.get(flag)
    match bound:
        case Words(words):
            return value if value in words else None
        case Range() if not isinstance(value, str) and not isinstance(now, str):  # a word such as auto stays
            return bound.nearest(value, now)
        case _:
            return None


def check(change: Change, settings: Mapping[str, Value]) -> None:
    """Raise UserError for a change that goes too far: the last look before anything is touched."""
    for flag, value in change.items():
        allowed = nearest(flag, value, settings.get(flag))
        if allowed is None:
            raise UserError(f"Experiments may not set --{flag} {value}; they may set {', '.join(BOUNDS)}.")
        if allowed != value:
            raise UserError(f"Experiments may set --{flag} from {BOUNDS[flag]}, now to {allowed} (got {value}).")


def field_of(flag: str) -> str:
    """The name of a flag in engine settings."""
    return flag.replace("-", "_")
