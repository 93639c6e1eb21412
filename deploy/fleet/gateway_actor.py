"""The fleet's own gateway: an actor on Ray's head node that keeps one gateway process alive, and its keeper.

Its settings are kept in Ray's key-value store, so an actor that Ray restarts has the latest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common.clock import MonotonicClock
from common.errors import UserError
from common.fleet import RAY_NAMESPACE
from common.settings import validated
from deploy.fleet import placement
from deploy.fleet.messages import GatewayStatus
from deploy.local.gateway_process import GatewayProcess, gateway_url
from deploy.processes import become_subreaper
from gateway.config import GatewaySettings

GATEWAY_ACTOR = "canopy-gateway"
_PLAN_KEY = "canopy-gateway-plan"
_TEND_S = 0.25
_RETRY_S = 5.0
_LISTEN_TIMEOUT_S = 60.0
_LISTEN_POLL_S = 0.1
_DRAIN_MARGIN_S = 5.0  # beyond the gateway's own grace time
_STATUS_TIMEOUT_S = 2.0
_LOG = logging.getLogger(__name__)


class GatewayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway settings by name, and where its log is."""

    values: dict[str, Any]
    log_dir: str


class GatewayActor:
    """Owner of the gateway's process. All methods run on the actor's event loop, so none may block."""

    def __init__(self) -> None:
        become_subreaper()
        plan = kept_plan()
        assert plan is not None, "the keeper keeps it first"
        self._process = GatewayProcess(
            _complete(plan.values),
            _run_dir(),
            Path(plan.log_dir) / "gateway.log",
            dict(os.environ),
            MonotonicClock(),
            outlives_us=True,
        )
        self._message = ""
        self._is_changing = False
        self._retiring: asyncio.Task[None] | None = None  # the end of the gateway before this one
        self._tending = asyncio.create_task(self._tend())

    async def change(self, values: dict[str, Any]) -> str:
        """Start a gateway with these settings; when it listens, let the old one finish what it has. Returns why that
        failed, or nothing; then the old one goes on."""
        self._is_changing = True
        try:
            new = self._process.successor(_complete(values))
            if not new.can_run_beside(self._process):
                await self._stop(self._process)
            if fault := await _start(new):
                return fault
            self._retiring = asyncio.create_task(self._stop(self._process))
            self._process, self._message = new, ""
            return ""
        finally:
            self._is_changing = False

    async def status(self) -> bytes:
        """A GatewayStatus."""
        ready = await asyncio.to_thread(self._process.ready_workers)
        status = GatewayStatus(url=self._process.url, ready_workers=ready, message=self._message)
        return msgspec.msgpack.encode(status)

    async def _stop(self, process: GatewayProcess) -> None:
        await asyncio.to_thread(process.stop, process.settings.shutdown_grace_s + _DRAIN_MARGIN_S)

    async def _tend(self) -> None:
        await asyncio.to_thread(self._process.inherit)
        self._message = await _start(self._process)
        while True:
            await asyncio.sleep(_TEND_S)
            if self._is_changing:
                continue
            if self._process.pid is None:  # the port could not be had
                await asyncio.sleep(_RETRY_S)
                self._message = await _start(self._process)
            else:
                self._look()

    def _look(self) -> None:
        try:
            event = self._process.tend()
        except UserError as fault:
            event = str(fault)
        if event:
            _LOG.warning("%s", event)
            self._message = "" if self._process.exit_code() is None else event


async def _start(process: GatewayProcess) -> str:
    """Start it and wait until it listens. Returns why it does not, or nothing."""
    try:
        process.start()
    except (UserError, OSError) as fault:
        return f"gateway: {fault}"
    deadline_s = time.monotonic() + _LISTEN_TIMEOUT_S
    while not process.is_listening and time.monotonic() < deadline_s:
        if process.exit_code() is not None:
            return f"gateway: {process.last_words()}"
        await asyncio.sleep(_LISTEN_POLL_S)
    if process.is_listening:
        process.let_inherited_finish()
        return ""
    return f"gateway: it did not listen within {_LISTEN_TIMEOUT_S:.0f} s"


class GatewayKeeper:
    """What the controller does about the gateway."""

    async def run(self, values: dict[str, Any], log_dir: str) -> None:
        """Have a gateway with these settings: start it, change it, or leave it alone. Raises UserError if the new one
        does not come up; then the old one goes on."""
        plan = msgspec.msgpack.encode(GatewayPlan(values=values, log_dir=log_dir))
        is_same = _internal_kv_get(_PLAN_KEY, namespace=RAY_NAMESPACE) == plan
        try:
            actor = ray.get_actor(GATEWAY_ACTOR, namespace=RAY_NAMESPACE)
        except ValueError:
            _internal_kv_put(_PLAN_KEY, plan, namespace=RAY_NAMESPACE)
            _create()
            return
        if is_same:
            return
        if fault := await actor.change.remote(values):
            raise UserError(fault)
        _internal_kv_put(_PLAN_KEY, plan, namespace=RAY_NAMESPACE)

    async def status(self) -> GatewayStatus | None:
        """None if the fleet runs no gateway."""
        try:
            actor = ray.get_actor(GATEWAY_ACTOR, namespace=RAY_NAMESPACE)
        except ValueError:
            return None
        try:
            answer = await asyncio.wait_for(actor.status.remote(), _STATUS_TIMEOUT_S)
        except (RayError, TimeoutError):
            plan = kept_plan()
            url = gateway_url(validated(GatewaySettings, plan.values)) if plan is not None else ""
            return GatewayStatus(url=url)  # it is being started
        return msgspec.msgpack.decode(answer, type=GatewayStatus)


def _create() -> None:
    ray.remote(GatewayActor).options(
        name=GATEWAY_ACTOR,
        namespace=RAY_NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(placement.head_node_id(), soft=False),
    ).remote()


def kept_plan() -> GatewayPlan | None:
    """How the fleet's gateway is run; None if the fleet has none."""
    kept = _internal_kv_get(_PLAN_KEY, namespace=RAY_NAMESPACE)
    return msgspec.msgpack.decode(kept, type=GatewayPlan) if kept else None


def _run_dir() -> Path:
    """Of this Ray and no other, and the same after a restart of the actor."""
    context = ray.get_runtime_context()
    directory = Path(str(context.get_temp_dir()), str(context.get_session_name()), "canopy-gateway")
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "ray_address": ray.get_runtime_context().gcs_address}
