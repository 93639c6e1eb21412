"""The fleet's named Ray actor. Gateways, replicas, `canopy serve --cluster`, `scale` and `status` talk to it.

What it must remember is kept in Ray's own key-value store; the rest a restarted controller learns from the replicas it
finds running.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from typing import Any

import msgspec
import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common import logs
from common.clock import MonotonicClock
from common.errors import UserError
from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from common.logs import LogFormat
from deploy.autoscale.autoscaler import make_autoscaler
from deploy.autoscale.warmup import PrefixWarmer
from deploy.fleet import placement
from deploy.fleet.description import FleetDescription
from deploy.fleet.gateway_actor import GatewayKeeper
from deploy.fleet.kept import FleetState
from deploy.fleet.messages import Answer, Beat, EngineSettings
from deploy.fleet.ray_lives import RayLauncher
from deploy.fleet.roster import Roster
from deploy.fleet.specs import Surroundings, check_room, specs_of
from deploy.fleet.state import Policy
from deploy.fleet.supervisor import Supervisor

_STATE_KEY = "canopy-fleet-state"
_LOG = logging.getLogger(__name__)


def start_controller(log_format: LogFormat = "text") -> Any:
    """The fleet's controller in the connected Ray, created if it is not there. Returns its actor handle."""
    actor = ray.remote(ControllerActor).options(
        name=CONTROLLER_ACTOR,
        namespace=RAY_NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=1000,  # every gateway holds one long poll
        scheduling_strategy=NodeAffinitySchedulingStrategy(placement.head_node_id(), soft=True),
    )
    return actor.remote(log_format)


class ControllerActor:
    """Reconciles the fleet. Messages are msgpack bytes of common.fleet and deploy.fleet.messages."""

    def __init__(self, log_format: LogFormat) -> None:
        logs.setup("info", log_format, process="controller")
        self._roster = Roster(
            Policy(),
            new_incarnation=lambda: uuid.uuid4().hex[:12],
            first_version=time.time_ns() // 1_000_000,  # above every version of a controller before us
            make_autoscaler=make_autoscaler,
        )
        self._supervisor = Supervisor(self._roster, RayLauncher(), RayStore(), MonotonicClock(), PrefixWarmer())
        self._gateway = GatewayKeeper()
        # Ray runs this constructor on the actor's event loop, after a restart too.
        self._tending = asyncio.create_task(self._supervisor.run())
        self._tending.add_done_callback(_end_process)

    async def apply(self, description: bytes, surroundings: bytes) -> bytes:
        """Make the fleet that of a FleetDescription. Returns an Answer. The Surroundings are those of the first call
        where a foreground `canopy serve` owns the fleet."""
        wanted = msgspec.msgpack.decode(description, type=FleetDescription)
        around = msgspec.msgpack.decode(surroundings, type=Surroundings)
        try:
            return _answer(Answer(changes=await self._apply(wanted, around)))
        except UserError as error:
            return _answer(Answer(refusal=str(error)))

    async def scale(self, model: str, replicas: int) -> bytes:
        """Have this many replicas of a model; an empty name is that of the only one. Returns an Answer."""
        try:
            return _answer(Answer(changes=[await self._scale(model, replicas)]))
        except UserError as error:
            return _answer(Answer(refusal=str(error)))

    async def engine_settings(self, model: str, names: list[str]) -> bytes:
        """An EngineSettings with those of `names` that a model's replicas were given."""
        await self._supervisor.settled()
        try:
            name, settings = self._roster.engine_settings(model)
        except UserError as error:
            return msgspec.msgpack.encode(EngineSettings(refusal=str(error)))
        told = {key: settings[key] for key in names if key in settings}
        return msgspec.msgpack.encode(EngineSettings(model=name, settings=told))

    async def begin_trial(self, model: str, engine: dict[str, Any], owner: str, instead: bool) -> bytes:
        """Have one replica with these engine settings beside the others, or `instead` of one. Returns an Answer with
        its version. It leaves a minute after the last `renew_trial`."""
        await self._supervisor.settled()
        try:
            return _answer(Answer(changes=[await self._supervisor.begin_trial(model, engine, owner, instead=instead)]))
        except UserError as error:
            return _answer(Answer(refusal=str(error)))

    async def renew_trial(self, model: str, owner: str) -> bool:
        """Whoever began an experiment is still there. False: it is over for the fleet."""
        await self._supervisor.settled()
        return self._supervisor.renew_trial(model, owner)

    async def end_trial(self, model: str, owner: str, keep: bool) -> bool:
        """Let the canary go, or with `keep` make all replicas like it. False if the experiment was over already."""
        await self._supervisor.settled()
        return await self._supervisor.end_trial(model, owner, keep=keep)

    async def watch(self, version: int, timeout_s: float) -> bytes:
        """A FleetSnapshot, as soon as its version exceeds `version`; the unchanged one after `timeout_s`."""
        return msgspec.msgpack.encode(await self._supervisor.watch(version, timeout_s))

    async def beat(self, beat: bytes) -> bool:
        """A replica renews its lease with a Beat. False: it should end."""
        return await self._supervisor.beat(msgspec.msgpack.decode(beat, type=Beat))

    async def drain(self, replica_id: str) -> None:
        """Let one replica finish its requests and leave; another one takes its place."""
        await self._supervisor.drain(replica_id)

    async def status(self) -> bytes:
        """A FleetStatus."""
        status = await self._supervisor.status()
        return msgspec.msgpack.encode(msgspec.structs.replace(status, gateway=await self._gateway.status()))

    async def _apply(self, wanted: FleetDescription, around: Surroundings) -> list[str]:
        await self._supervisor.settled()
        before, kept = self._roster.description, self._roster.around
        if before is not None and kept is not None and not kept.runs_gateway:
            around = kept
            if wanted.gateway != before.gateway:
                raise UserError(
                    "The gateway of this fleet belongs to the `canopy serve` that runs it; start that anew to change "
                    "gateway settings."
                )
        cluster = await asyncio.to_thread(placement.cluster)
        specs = specs_of(wanted, around, has_gpus=cluster.has_gpus)
        check_room(specs, self._roster.wanted_after(wanted), cluster)
        if around.runs_gateway:
            await self._gateway.run(wanted.gateway, around.log_dir)  # first, because it may fail
        return await self._supervisor.apply(wanted, specs, around)

    async def _scale(self, name: str, replicas: int) -> str:
        await self._supervisor.settled()
        model = self._roster.scalable(name, replicas)
        before = self._roster.wanted
        check_room(self._roster.specs, {**before, model: replicas}, await asyncio.to_thread(placement.cluster))
        await self._supervisor.scale(model, replicas)
        return f"{model}: scale {before[model]} -> {replicas}"


class RayStore:
    """Keeps the state in Ray's key-value store, which lives as long as the head node."""

    def load(self) -> FleetState | None:
        """What was saved last."""
        value = _internal_kv_get(_STATE_KEY, namespace=RAY_NAMESPACE)
        return msgspec.msgpack.decode(value, type=FleetState) if value else None

    def save(self, state: FleetState) -> None:
        """Keep it. Raises RayError if the head cannot be reached."""
        _internal_kv_put(_STATE_KEY, msgspec.msgpack.encode(state), namespace=RAY_NAMESPACE)


def _answer(answer: Answer) -> bytes:
    return msgspec.msgpack.encode(answer)


def _end_process(task: asyncio.Task[None]) -> None:
    """A controller that no longer reconciles must not linger: Ray restarts it."""
    _LOG.error("the controller stopped", exc_info=task.exception())
    os._exit(1)
