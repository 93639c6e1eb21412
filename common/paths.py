"""Where Canopy keeps what outlives a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_root(env: Mapping[str, str]) -> Path:
    """Converted models, logs, profiles, what fleets are running: $CANOPY_CACHE, else ~/.cache/canopy."""
    named = env.get("CANOPY_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "canopy"
