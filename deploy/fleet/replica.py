"""The Ray actor of one life of one replica: runs the worker's process tree and renews the replica's lease.

The controller creates it (deploy/fleet/ray_lives.py) and kills it when the life is over. Messages are msgpack bytes.
The lease is tied to the scheduler: a worker that serves is asked for its load, and no answer is no beat.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import ray
from ray.exceptions import RayError

from common.clock import MonotonicClock
from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from deploy.fleet.load_probe import LoadProbe, NoProgress
from deploy.fleet.messages import Beat, Ending, Life, ReplicaSpec
from deploy.fleet.worker_process import WorkerProcess

_BEAT_S = 2.0
_BEAT_TIMEOUT_S = 5.0
_STALL_S = 60.0  # a scheduler that makes no progress so long is ended
_LOG = logging.getLogger(__name__)


class ReplicaActor:
    """One worker under Ray. All methods run on the actor's event loop, so none may block."""

    def __init__(self, spec: bytes, life: bytes) -> None:
        self._clock = MonotonicClock()
        self._life = msgspec.msgpack.decode(life, type=Life)
        node = ray.util.get_node_ip_address()
        decoded = msgspec.msgpack.decode(spec, type=ReplicaSpec)
        self._settings = decoded.settings
        self._worker = WorkerProcess(decoded, self._life, node=node)
        self._probe: LoadProbe | None = None
        # Ray runs this constructor on the actor's event loop
        self._starting = asyncio.create_task(self._worker.start())
        self._beating = asyncio.create_task(self._beat())

    async def ping(self) -> None:
        """Answer, which an actor without a place on a node cannot."""

    async def ready(self) -> bytes:
        """Wait until the worker serves or has ended. Returns Ready or Ending."""
        outcome = await self._worker.ready()
        if not isinstance(outcome, Ending):
            self._probe = self._probe or LoadProbe(outcome.url, self._clock, self._settings)
        return msgspec.msgpack.encode(outcome)

    async def ended(self) -> bytes:
        """Wait until the worker has ended. Returns Ending."""
        return msgspec.msgpack.encode(await self._worker.ended())

    async def stop(self, grace_s: float) -> None:
        """Let the worker finish its requests and end; kill it after `grace_s`."""
        await self._worker.stop(grace_s)

    async def _beat(self) -> None:
        while self._worker.is_alive:
            try:
                load = await self._probe.ask() if self._probe is not None else None
                await self._renew(Beat(life=self._life, load=load))
            except NoProgress as fault:
                self._end_if_stalled(str(fault))
            await asyncio.sleep(_BEAT_S)

    async def _renew(self, beat: Beat) -> None:
        try:
            controller = await asyncio.to_thread(ray.get_actor, CONTROLLER_ACTOR, namespace=RAY_NAMESPACE)
            goes_on = await asyncio.wait_for(controller.beat.remote(msgspec.msgpack.encode(beat)), _BEAT_TIMEOUT_S)
        except (RayError, ValueError, TimeoutError) as error:  # it is being restarted, or cannot be reached
            _LOG.warning("cannot reach the controller: %s", error)
            return
        if not goes_on:
            self._worker.end("the fleet has given it up")

    def _end_if_stalled(self, fault: str) -> None:
        assert self._probe is not None
        stalled_s = self._clock.now_s() - self._probe.progressed_at_s
        _LOG.warning("%s, for %.0f s", fault, stalled_s)
        if stalled_s >= _STALL_S:
            self._worker.end(f"{fault} for {stalled_s:.0f} s")
