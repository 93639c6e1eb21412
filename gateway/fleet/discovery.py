"""Where workers come from: a protocol, the static list of the command line, and the fleet's controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from common.fleet import FleetSnapshot, ReplicaRecord
from gateway.fleet.registry import Registry, check_url
from gateway.fleet.worker import Identity

_LOG = logging.getLogger("gateway.discovery")
_WATCH_TIMEOUT_S = 30.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 5.0
FLEET = "ray"


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


class FleetLost(Exception):
    """The fleet's controller cannot be asked just now."""


class FleetWatch(Protocol):
    """The controller, over whatever carries its messages."""

    async def watch(self, version: int, timeout_s: float) -> bytes:
        """A msgpack FleetSnapshot: at once if its version is not `version`, else when it changes or after `timeout_s`.

        Raises FleetLost.
        """
        ...

    async def close(self) -> None:
        """Let go of the connection."""
        ...


class FleetDiscovery:
    """Follows the fleet's controller by long poll. While the controller is away the last known fleet stays."""

    def __init__(self, registry: Registry, watch: FleetWatch) -> None:
        self._registry = registry
        self._watch = watch
        self._version = 0
        self.records: list[ReplicaRecord] = []  # of the last snapshot
        self._decoder = msgspec.msgpack.Decoder(FleetSnapshot)

    async def run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        try:
            while True:
                try:
                    snapshot = self._decoder.decode(await self._watch.watch(self._version, _WATCH_TIMEOUT_S))
                except (FleetLost, msgspec.DecodeError) as error:
                    _LOG.warning("the fleet's controller does not answer (%s); trying again in %g s", error, backoff_s)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
                    continue
                backoff_s = _FIRST_BACKOFF_S
                if snapshot.version != self._version:
                    self._version = snapshot.version
                    self.records = snapshot.replicas
                    self.apply(snapshot)
        finally:
            await self._watch.close()

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Make the registry's replicas those of `snapshot`. Workers from elsewhere are left alone."""
        present = {check_url(record.url): record for record in snapshot.replicas if record.url}
        for worker in self._registry.snapshot.workers:
            record = present.get(worker.url)
            lives = record is not None and record.state != "failed" and record.replica_id == worker.name
            if worker.source == FLEET and not lives:
                self._registry.remove(worker.url)
        for url, record in present.items():
            if record.state == "ready":
                self._serve(url, record)
            elif record.state == "draining":
                self._registry.drain(url)

    def _serve(self, url: str, record: ReplicaRecord) -> None:
        identity = Identity(
            model=record.model,
            incarnation=record.incarnation,
            max_total_tokens=record.max_total_num_tokens,
            max_running_requests=record.max_running_requests,
        )
        known = self._registry.snapshot.get(url)
        if known is not None and known.identity.incarnation == record.incarnation:
            return  # from here on our own probes say whether it serves
        if known is None:
            self._registry.add(url, source=FLEET, name=record.replica_id, identity=identity)
        else:
            self._registry.identify(url, identity)
        self._registry.ready(url)
