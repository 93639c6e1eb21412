"""Arrival times from recorded traces: CSV files as Azure publishes them (TIMESTAMP, ContextTokens, GeneratedTokens).

Several files are one load: their requests are merged by time. `stretch` plays each minute of the recording so often
before the next begins: the shape of an hour becomes the shape of a day, at the recorded rate and with the recorded
bursts. `rate` plays so many copies of each minute at once, shifted against each other. Minutes begun but not finished
by the recording are left out.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from common.errors import UserError

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MINUTE_S = 60.0
_MICROSECONDS = 26  # characters of a timestamp that datetime reads; Azure writes a seventh digit


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


def load_trace(paths: Sequence[Path], *, rate: int = 1, stretch: int = 1) -> list[Request]:
    """In order of arrival; the first minute begins with the first recorded request. Raises UserError."""
    rows = sorted(row for path in paths for row in _read(path))
    first_s = rows[0][0]
    minutes = int((rows[-1][0] - first_s) // _MINUTE_S)
    if not minutes:
        raise UserError("--trace: the recording is shorter than a minute.")
    placed = ((*divmod(at_s - first_s, _MINUTE_S), prompt, output) for at_s, prompt, output in rows)
    found = [
        Request(arrival_s, max(prompt, 1), max(output, 1))
        for minute, offset_s, prompt, output in placed
        if minute < minutes
        for arrival_s in _played(minute, offset_s, rate, stretch)
    ]
    return sorted(found, key=lambda request: request.arrival_s)


def _played(minute: float, offset_s: float, rate: int, stretch: int) -> Iterator[float]:
    """When the request at `offset_s` of a recorded minute arrives: in each round of that minute, in each copy."""
    for round_ in range(stretch):
        for copy in range(rate):
            shifted_s = (offset_s + _MINUTE_S * copy / rate) % _MINUTE_S
            yield (minute * stretch + round_) * _MINUTE_S + shifted_s


def _read(path: Path) -> list[tuple[float, int, int]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            rows = [_row(path, number, row) for number, row in enumerate(csv.DictReader(file), 2)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--trace: cannot read {path}: {error}.") from None
    if not rows:
        raise UserError(f"--trace: {path} holds no request.")
    return rows


def _row(path: Path, number: int, row: dict[str, str]) -> tuple[float, int, int]:
    try:
        at, prompt, output = (row[column] for column in _COLUMNS)
        return datetime.fromisoformat(at[:_MICROSECONDS]).timestamp(), int(prompt), int(output)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"--trace: line {number} of {path} is not {', '.join(_COLUMNS)}.") from None
