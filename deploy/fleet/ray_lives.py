"""Lives of replicas as Ray actors, detached so that they outlast a restart of the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from common.fleet import RAY_NAMESPACE
from deploy.fleet import placement
from deploy.fleet.messages import Ending, Life, Ready, ReplicaSpec
from deploy.fleet.replica import ReplicaActor
from deploy.fleet.supervisor import LifeHandle

_PREFIX = "canopy-replica:"
_LOG = logging.getLogger(__name__)


class RayLauncher:
    """Launcher over the connected Ray. An actor's name holds its Life, so that it is known without asking it."""

    def launch(self, life: Life, spec: ReplicaSpec) -> LifeHandle:
        """Create the actor; it waits in Ray's queue until its resources are free."""
        actor = ray.remote(ReplicaActor).options(
            name=_PREFIX + msgspec.json.encode(life).decode(),
            namespace=RAY_NAMESPACE,
            lifetime="detached",
            max_restarts=0,  # a new life is a new actor
            **placement.actor_options(life, spec),
        )
        return RayLife(life, actor.remote(msgspec.msgpack.encode(spec), msgspec.msgpack.encode(life)))

    async def running(self) -> Sequence[tuple[Life, LifeHandle]]:
        """Replica actors that go on from an earlier controller, also those that still wait for a place."""
        found: list[tuple[Life, LifeHandle]] = []
        for name in await asyncio.to_thread(ray.util.list_named_actors):
            if not name.startswith(_PREFIX):
                continue
            life = msgspec.json.decode(name.removeprefix(_PREFIX), type=Life)
            try:
                found.append((life, RayLife(life, ray.get_actor(name, namespace=RAY_NAMESPACE))))
            except ValueError:  # it has just ended
                continue
        return found

    async def has_room(self, spec: ReplicaSpec) -> bool:
        """Whether one more replica would find a place at once."""
        return await asyncio.to_thread(placement.has_room, spec)


class RayLife:
    """A replica actor as the supervisor sees it: its death is an `Ending` like any other."""

    def __init__(self, life: Life, actor: Any) -> None:
        self._life = life
        self._actor = actor

    async def placed(self) -> Ending | None:
        """Wait until the actor runs on some node and its worker starts there."""
        try:
            await self._actor.placed.remote()
        except RayError as error:
            return _actor_died(error)
        return None

    async def ready(self) -> Ready | Ending:
        """Wait until the worker serves or has ended."""
        try:
            return msgspec.msgpack.decode(await self._actor.ready.remote(), type=Ready | Ending)
        except RayError as error:
            return _actor_died(error)

    async def ended(self) -> Ending:
        """Wait until the worker has ended."""
        try:
            return msgspec.msgpack.decode(await self._actor.ended.remote(), type=Ending)
        except RayError as error:
            return _actor_died(error)

    async def stop(self, grace_s: float) -> None:
        """Ask the worker to finish its requests and end."""
        try:
            await self._actor.stop.remote(grace_s)
        except RayError as error:
            _LOG.warning("a replica died while it was stopped: %s", error)

    def kill(self) -> None:
        """End the actor; its guard ends the worker's tree."""
        ray.kill(self._actor)
        placement.release(self._life)


def _actor_died(error: RayError) -> Ending:
    first_line = str(error).strip().partition("\n")[0]
    return Ending(reason=f"its Ray actor died ({first_line})")
