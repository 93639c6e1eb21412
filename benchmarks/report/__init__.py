"""Runs beside each other as one page: `canopy bench report RUN.jsonl... -o report.html`."""

from benchmarks.report.program import main

__all__ = ["main"]
