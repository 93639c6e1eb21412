"""The fleet's named Ray actor, and every Ray call it makes. Gateways, replicas and `canopy status` talk to it.

It holds no state that cannot be rebuilt: a restarted controller adopts the replicas it finds running.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from common import logs
from common.clock import MonotonicClock
from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from deploy.fleet.messages import Ending, Life, Ready, ReplicaSpec
from deploy.fleet.replica import ReplicaActor
from deploy.fleet.roster import Roster
from deploy.fleet.state import Policy
from deploy.fleet.supervisor import LifeHandle, Supervisor

_REPLICA_PREFIX = "canopy-replica:"
_LOG = logging.getLogger(__name__)


def start_controller(spec: ReplicaSpec, replicas: int) -> Any:
    """Create the controller and its fleet in the connected Ray. Returns its actor handle."""
    actor = ray.remote(ControllerActor).options(
        name=CONTROLLER_ACTOR,
        namespace=RAY_NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=1000,  # every gateway holds one long poll
    )
    return actor.remote(msgspec.msgpack.encode(spec), replicas)


class ControllerActor:
    """Reconciles the fleet. Messages are msgpack bytes of common.fleet and deploy.fleet.messages."""

    def __init__(self, spec: bytes, replicas: int) -> None:
        decoded = msgspec.msgpack.decode(spec, type=ReplicaSpec)
        logs.setup("info", decoded.settings.get("log_format", "text"), process="controller")
        roster = Roster(
            decoded.model,
            decoded.log_dir,
            Policy(start_timeout_s=decoded.start_timeout_s),
            new_incarnation=lambda: uuid.uuid4().hex[:12],
            first_version=time.time_ns() // 1_000_000,  # above every version of a controller before us
        )
        self._supervisor = Supervisor(roster, RayLauncher(decoded), MonotonicClock())
        # Ray runs this constructor on the actor's event loop, after a restart too.
        self._tending = asyncio.create_task(self._supervisor.run(replicas))
        self._tending.add_done_callback(_end_process)

    async def watch(self, version: int, timeout_s: float) -> bytes:
        """A FleetSnapshot, as soon as its version exceeds `version`; the unchanged one after `timeout_s`."""
        return msgspec.msgpack.encode(await self._supervisor.watch(version, timeout_s))

    async def beat(self, life: bytes) -> None:
        """A replica renews its lease."""
        self._supervisor.beat(msgspec.msgpack.decode(life, type=Life))

    async def drain(self, replica_id: str) -> None:
        """Let one replica finish its requests and leave for good."""
        await self._supervisor.drain(replica_id)

    async def status(self) -> bytes:
        """A FleetStatus."""
        return msgspec.msgpack.encode(self._supervisor.status())


class RayLauncher:
    """Lives as detached actors, so that they outlast a restart of the controller."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec

    def launch(self, life: Life) -> LifeHandle:
        """Create the actor; it waits in Ray's queue until its resources are free."""
        actor = ray.remote(ReplicaActor).options(
            name=f"{_REPLICA_PREFIX}{life.replica_id}:{life.incarnation}",
            namespace=RAY_NAMESPACE,
            lifetime="detached",
            num_cpus=self._spec.num_cpus,
            num_gpus=self._spec.num_gpus,
            max_restarts=0,  # a new life is a new actor
        )
        return RayLife(actor.remote(msgspec.msgpack.encode(self._spec), msgspec.msgpack.encode(life)))

    async def running(self) -> Sequence[tuple[Life, LifeHandle]]:
        """Replica actors that go on from an earlier controller."""
        found: list[tuple[Life, LifeHandle]] = []
        for name in ray.util.list_named_actors():
            if not name.startswith(_REPLICA_PREFIX):
                continue
            try:
                actor = ray.get_actor(name, namespace=RAY_NAMESPACE)
                life = msgspec.msgpack.decode(await actor.life.remote(), type=Life)
            except (RayError, ValueError) as error:
                _LOG.warning("%s is not adopted: %s", name, error)
                continue
            found.append((life, RayLife(actor)))
        return found


class RayLife:
    """A replica actor as the supervisor sees it: its death is an `Ending` like any other."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

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


def _actor_died(error: RayError) -> Ending:
    first_line = str(error).strip().partition("\n")[0]
    return Ending(reason=f"its Ray actor died ({first_line})")


def _end_process(task: asyncio.Task[None]) -> None:
    """A controller that no longer reconciles must not linger: Ray restarts it."""
    _LOG.error("the controller stopped", exc_info=task.exception())
    os._exit(1)
