"""The program: reads runs, writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import Arguments
from benchmarks.report.page import page
from benchmarks.report.runs import read_runs
from common.errors import UserError

_DESCRIPTION = """Runs of `canopy bench serve --output-file` (or of a benchmark with the same keys) as one HTML page.

Each line of a file is a run. Runs with one tag, or of one file if they have none, are a series: the levels of a sweep.
Others are set against the first run."""


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Write the page. Returns the exit code. Raises UserError."""
    parser = Arguments(prog=prog, description=_DESCRIPTION)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.jsonl")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="default: report.html")
    parser.add_argument("--title", default="Serving benchmark")
    options = parser.parse_args(argv)
    runs = read_runs(options.runs)
    text = page(options.title, runs)
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output: cannot write {options.output}: {error.strerror}.") from None
    print(f"{len(runs)} runs: {options.output}")
    return 0
