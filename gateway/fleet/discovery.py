"""Where workers come from: a protocol, and the static list of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.fleet.registry import Registry, check_url


class Discovery(Protocol):
    """Keeps the registry equal to some outside truth."""

    async def run(self) -> None:
        """Follow that truth until cancelled, or return if there is nothing to follow."""
        ...


class StaticDiscovery:
    """Workers given once."""

    def __init__(self, registry: Registry, urls: Sequence[str]) -> None:
        self._registry = registry
        self._urls = urls

    async def run(self) -> None:
        for url in self._urls:
            self._registry.add(check_url(url), source="static")
