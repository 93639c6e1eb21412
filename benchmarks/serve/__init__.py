"""Load on a running server or gateway: `canopy bench serve` (= `python -m benchmarks.serve`)."""

from benchmarks.serve.program import main

__all__ = ["main"]
