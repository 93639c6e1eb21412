"""The engine without a server: `from worker import Engine`."""

from __future__ import annotations

from worker.offline.engine import Engine

__all__ = ["Engine"]
