"""Recorded traces of requests, by path: one reader for whoever replays, plans or compares. Plain, .gz or .xz.

Two formats, told apart by the first line:
- JSON lines as Mooncake publishes them: timestamp (ms), input_length, output_length, hash_ids, one for each block of
  the prompt, where an equal id means an equal block after equal ones; session_id, where there is one.
- CSV as Azure publishes it: TIMESTAMP (ISO 8601), ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
import gzip
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson

from common.errors import UserError

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `blocks` are the ids of its prompt's blocks, () where the trace has none; `session` is whose turn it
    is, None where the trace does not tell."""

    arrival_s: float  # since the first request of the trace
    prompt_tokens: int  # >= 1
    output_tokens: int  # >= 1
    blocks: tuple[int, ...] = ()
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording, in order of arrival; never empty. `begin_s` is the first request's time on the recording's own clock
    (Unix time in Azure's files). `block_tokens` is the size of a block, None where no request has blocks."""

    name: str
    begin_s: float
    requests: tuple[TraceRequest, ...]

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival_s

    @property
    def block_tokens(self) -> int | None:
        """Not recorded, but a power of two: the smallest one that every prompt fits into its blocks with. That is the
        real size as soon as one prompt has two blocks; before that any size does."""
        sizes = [-(-request.prompt_tokens // len(request.blocks)) for request in self.requests if request.blocks]
        return 1 << (max(sizes) - 1).bit_length() if sizes else None


def read_trace(path: Path, *, flag: str = "--trace", limit: int | None = None) -> Trace:
    """The recording in `path`, or its first `limit` lines. `flag` is what the user called it. Raises UserError."""
    lines = text_lines(path, flag=flag)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{flag}: {path} holds no request.")
    rest = chain([first], lines)
    read = _mooncake if first[1].lstrip().startswith("{") else _azure
    found = sorted(islice(read(path, rest, flag), limit), key=lambda request: request.arrival_s)
    if not found:
        raise UserError(f"{flag}: {path} holds no request.")
    begin_s = found[0].arrival_s
    moved = tuple(replace(request, arrival_s=request.arrival_s - begin_s) for request in found)
    return Trace(path.name.split(".")[0], begin_s, moved)


def played(traces: Sequence[Trace], *, rate: int = 1, stretch: int = 1) -> list[TraceRequest]:
    """Several recordings as one load, in order of arrival: merged by their clocks, cut into minutes.

    `stretch` plays each minute so often before the next begins: the shape of an hour becomes the shape of a day, at the
    recorded rate and with the recorded bursts. `rate` plays so many copies of each minute at once, shifted against each
    other. A minute that the recordings begin but do not finish is left out. Raises UserError.
    """
    first_s = min(trace.begin_s for trace in traces)
    rows = [(trace.begin_s - first_s + request.arrival_s, request) for trace in traces for request in trace.requests]
    minutes = int(max(at_s for at_s, _ in rows) // _MINUTE_S)
    if not minutes:
        raise UserError("--trace: the recording is shorter than a minute.")
    found = [
        replace(request, arrival_s=arrival_s)
        for at_s, request in rows
        if at_s < minutes * _MINUTE_S
        for arrival_s in _rounds(*divmod(at_s, _MINUTE_S), rate, stretch)
    ]
    return sorted(found, key=lambda request: request.arrival_s)


def text_lines(path: Path, *, flag: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1. Raises UserError, also while it is read."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{flag}: cannot read {path}: {reason}.") from None


def fault_of(error: Exception) -> str:
    """What an entry of a file lacks or has wrong."""
    return f"it lacks {error.args[0]}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"


def _rounds(minute: float, offset_s: float, rate: int, stretch: int) -> Iterator[float]:
    """When the request at `offset_s` of a recorded minute arrives: in each round of that minute, in each copy."""
    for round_ in range(stretch):
        for copy in range(rate):
            shifted_s = (offset_s + _MINUTE_S * copy / rate) % _MINUTE_S
            yield (minute * stretch + round_) * _MINUTE_S + shifted_s


def _mooncake(path: Path, lines: Iterator[tuple[int, str]], flag: str) -> Iterator[TraceRequest]:
    for number, line in lines:
        try:
            entry = orjson.loads(line)
            session = entry.get("session_id")
            yield TraceRequest(
                float(entry["timestamp"]) / 1000,
                max(1, int(entry["input_length"])),
                max(1, int(entry["output_length"])),
                tuple(map(int, entry.get("hash_ids", ()))),
                None if session is None else str(session),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{flag}: line {number} of {path} is no request of a Mooncake trace ({fault_of(error)})."
            ) from None


def _azure(path: Path, lines: Iterator[tuple[int, str]], flag: str) -> Iterator[TraceRequest]:
    for number, row in enumerate(csv.DictReader(line for _, line in lines), 2):
        try:
            at, prompt, output = (row[column] for column in _COLUMNS)
            yield TraceRequest(_unix_s(at), max(1, int(prompt)), max(1, int(output)))
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{flag}: line {number} of {path} is neither JSON of a Mooncake trace nor {', '.join(_COLUMNS)}."
            ) from None


def _unix_s(text: str) -> float:
    """Times without a zone are in UTC."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
