"""Runs as a report needs them: lines of the load generator's output files, named and put into series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.traces import text_lines
from common.errors import UserError

_NEEDED = ("completed", "duration", "request_throughput", "mean_e2e_latency_ms")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. `series`: its tag, or its file's name. `level`: its rate or concurrency, "" where its series has no
    other."""

    series: str
    level: str
    figures: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As it is called in the page."""
        return " ".join(part for part in (self.series, self.level) if part)

    @property
    def generates(self) -> bool:
        """Whether its answers were made of tokens; embeddings have figures of prompts only."""
        return self.figures.get("output_throughput") is not None

    @property
    def failed(self) -> int:
        """Requests without a good answer; 0 where the benchmark did not tell."""
        return int(self.figures.get("failed") or 0)


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """All runs of all files, in their order; at least one. Raises UserError."""
    found = [(path.name.split(".")[0], figures) for path in paths for figures in _lines(path)]
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: no runs in there.")
    named = [(str(figures.get("tag") or stem), figures) for stem, figures in found]
    sizes = {series: sum(other == series for other, _ in named) for series, _ in named}
    return [RunRecord(series, level_of(figures) if sizes[series] > 1 else "", figures) for series, figures in named]


def baseline(runs: Sequence[RunRecord], run: RunRecord) -> RunRecord | None:
    """What a run is set against: the first series' run of the same level; None for that series itself."""
    first = runs[0].series
    if run.series == first and run.level:
        return None
    found = next((other for other in runs if other.series == first and other.level == run.level), None)
    return None if found is run else found


def drawn(runs: Sequence[RunRecord], most: int) -> list[RunRecord]:
    """At most so many runs, one for each colour: of each series some levels, evenly chosen, its last one among them."""
    if len(runs) <= most:
        return list(runs)
    series = list(dict.fromkeys(run.series for run in runs))[:most]
    share, found = most // len(series), []
    for name in series:
        own = [run for run in runs if run.series == name]
        count = min(share, len(own))
        found += [own[-1 - (count - 1 - place) * (len(own) - 1) // max(1, count - 1)] for place in range(count)]
    return found


def level_of(figures: Mapping[str, Any]) -> str:
    """What a sweep varies: the rate where there is one, else the bound of requests in flight."""
    rate, bound = figures.get("request_rate"), figures.get("max_concurrency")
    parts = [f"{rate:g}/s"] if isinstance(rate, float | int) and rate != float("inf") else []
    return " ".join([*parts, *([f"c={bound}"] if bound else [])])


def _lines(path: Path) -> list[Mapping[str, Any]]:
    found = []
    for number, line in text_lines(path, flag="RUN.jsonl"):
        try:
            figures = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UserError(f"Line {number} of {path} is not JSON ({error}).") from None
        lacking = [key for key in _NEEDED if not isinstance(figures, dict) or figures.get(key) is None]
        if lacking:
            raise UserError(f"Line {number} of {path} is not a run of a serving benchmark: it lacks {lacking[0]}.")
        found.append(figures)
    return found
