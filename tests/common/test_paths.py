"""Where things are kept."""

from __future__ import annotations

from pathlib import Path

from common.paths import cache_root


def test_cache_root() -> None:
    assert cache_root({"CANOPY_CACHE": "/x/y"}) == Path("/x/y")
    assert cache_root({}) == Path.home() / ".cache" / "canopy"
