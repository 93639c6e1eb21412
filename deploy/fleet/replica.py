"""The Ray actor of one life of one replica: runs the worker's process tree and renews the replica's lease.

The controller creates it (deploy/fleet/ray_lives.py) and kills it when the life is over. Messages are msgpack bytes.
Health is tied to the scheduler: a worker that serves is asked for its load at each beat, the scheduler answers, and it
is ended if there is no progress for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from common.clock import MonotonicClock
from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from deploy.fleet.load_probe import LoadProbe, NoProgress
from deploy.fleet.messages import Beat, Ending, Life, ReplicaSpec
from deploy.fleet.scaling import ReplicaLoad
from deploy.fleet.start_slots import StartSlots
from deploy.fleet.worker_process import WorkerProcess

_BEAT_S = 2.0
_BEAT_TIMEOUT_S = 5.0
_STALL_S = 60.0  # a scheduler that makes no progress so long is ended
_SLOW_STALL_S = 300.0  # the same on a CPU, where a chunk of a long prompt may take a minute
_START_S = 60.0  # so long a worker that starts keeps others waiting: what takes longer waits for a disk or a GPU
_LOG = logging.getLogger(__name__)


class ReplicaActor:
    """One worker under Ray. All methods run on the actor's event loop, so none may block."""

    def __init__(self, spec: bytes, life: bytes) -> None:
        self._clock = MonotonicClock()
        self._life = msgspec.msgpack.decode(life, type=Life)
        node = ray.util.get_node_ip_address()
        decoded = msgspec.msgpack.decode(spec, type=ReplicaSpec)
        self._settings = decoded.settings
        self._stall_limit_s = stall_limit_s(decoded.settings, has_gpu=decoded.num_gpus > 0)
        self._worker = WorkerProcess(decoded, self._life, node=node)
        self._probe: LoadProbe | None = None
        self._slots = StartSlots.of_node(node)
        self._has_turn = asyncio.Event()
        # Ray runs this constructor on the actor's event loop
        self._starting = asyncio.create_task(self._start())
        self._beating = asyncio.create_task(self._beat())

    async def placed(self) -> None:
        """Wait until it is this worker's turn to start on the node."""
        await self._has_turn.wait()

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

    async def _start(self) -> None:
        async with contextlib.AsyncExitStack() as turn:
            try:
                await turn.enter_async_context(self._slots.taken())
            except OSError as error:
                _LOG.warning("starts without waiting for other workers of this node: %s", error)
            self._has_turn.set()
            await self._worker.start()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._worker.ready(), _START_S)

    async def _beat(self) -> None:
        while self._worker.is_alive:
            await self._renew(Beat(life=self._life, load=await self._load()))
            await asyncio.sleep(_BEAT_S)

    async def _load(self) -> ReplicaLoad | None:
        """What the worker says of itself. Ends one whose scheduler has stalled for too long."""
        if self._probe is None:
            return None
        try:
            return await self._probe.ask()
        except NoProgress as fault:
            stalled_s = self._clock.now_s() - self._probe.progressed_at_s
            _LOG.warning("%s, for %.0f s", fault, stalled_s)
            if stalled_s >= self._stall_limit_s:
                self._worker.end(f"{fault} for {stalled_s:.0f} s")
            return None

    async def _renew(self, beat: Beat) -> None:
        try:
            controller = await asyncio.to_thread(ray.get_actor, CONTROLLER_ACTOR, namespace=RAY_NAMESPACE)
            goes_on = await asyncio.wait_for(controller.beat.remote(msgspec.msgpack.encode(beat)), _BEAT_TIMEOUT_S)
        except (RayError, ValueError, TimeoutError) as error:  # it is being restarted, or cannot be reached
            _LOG.warning("cannot reach the controller: %s", error)
            return
        if not goes_on:
            self._worker.end("the fleet has given it up")


def stall_limit_s(settings: Mapping[str, Any], *, has_gpu: bool) -> float:
    """How long a scheduler may make no progress: as long as the worker's own watchdog would let a step take where that
    is set, else longer than any step on the device."""
    is_slow = not has_gpu and settings.get("device") != "sim"
    return float(settings.get("watchdog_timeout_s", _SLOW_STALL_S if is_slow else _STALL_S))
