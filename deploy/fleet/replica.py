"""The Ray actor of one life of one replica: runs the worker's process tree and renews the replica's lease.

The controller creates it (deploy/fleet/controller.py) and kills it when the life is over. Messages are msgpack bytes.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import ray

from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from deploy.fleet.messages import Life, ReplicaSpec
from deploy.fleet.worker_process import WorkerProcess

_BEAT_S = 2.0
_LOG = logging.getLogger(__name__)


class ReplicaActor:
    """One worker under Ray. All methods run on the actor's event loop, so none may block."""

    def __init__(self, spec: bytes, life: bytes) -> None:
        self._life = life
        self._worker = WorkerProcess(
            msgspec.msgpack.decode(spec, type=ReplicaSpec),
            msgspec.msgpack.decode(life, type=Life),
            node=ray.util.get_node_ip_address(),
        )
        self._worker.start()  # Ray runs this constructor on the actor's event loop
        self._beating = asyncio.create_task(self._beat())

    async def ready(self) -> bytes:
        """Wait until the worker serves or has ended. Returns Ready or Ending."""
        return msgspec.msgpack.encode(await self._worker.ready())

    async def ended(self) -> bytes:
        """Wait until the worker has ended. Returns Ending."""
        return msgspec.msgpack.encode(await self._worker.ended())

    async def stop(self, grace_s: float) -> None:
        """Let the worker finish its requests and end; kill it after `grace_s`."""
        await self._worker.stop(grace_s)

    async def life(self) -> bytes:
        """Which Life this is, for a controller that was restarted."""
        return self._life

    async def _beat(self) -> None:
        controller = None
        while self._worker.is_alive:
            try:
                controller = controller or ray.get_actor(CONTROLLER_ACTOR, namespace=RAY_NAMESPACE)
                await controller.beat.remote(self._life)
            except (ray.exceptions.RayError, ValueError) as error:  # it is being restarted
                _LOG.warning("cannot reach the controller: %s", error)
                controller = None
            await asyncio.sleep(_BEAT_S)
