"""`python -m benchmarks.report`."""

from __future__ import annotations

from benchmarks.arguments import run
from benchmarks.report.program import main

if __name__ == "__main__":
    run(main)
