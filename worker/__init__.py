"""One replica: a whole engine (scheduler, prefix cache, runner) behind an OpenAI-style HTTP server.

`from worker import Engine` is the same engine without a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.offline import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    """Import the offline engine, and with it torch, only when asked for."""
    if name == "Engine":
        from worker.offline import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
