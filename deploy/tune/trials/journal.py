"""The log of experiments: one JSON object a line, written when an experiment is over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from common.errors import UserError
from deploy.tune.trials.bounds import Value
from deploy.tune.trials.comparison import Comparison


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment. `measured` is None where the canary did not serve long enough to be compared."""

    experiment: int
    model: str
    change: Mapping[str, Value]
    before: Mapping[str, Value | None]  # values of the same flags
    rule: int
    why: str
    outcome: str  # kept or dropped
    because: str
    settings: Mapping[str, Value]  # of all replicas after it
    measured: Comparison | None = None


class Journal:
    """Appends to a file, or only tells `tell` where there is none."""

    def __init__(self, path: Path | None) -> None:
        """Raises UserError if the file cannot be written."""
        self._path = path
        if path is not None:
            try:
                path.open("ab").close()
            except OSError as error:
                raise UserError(f"--journal: cannot write {path}: {error.strerror}.") from None

    def write(self, entry: Entry) -> None:
        """Add one line."""
        if self._path is None:
            return
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **msgspec.to_builtins(entry)}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
