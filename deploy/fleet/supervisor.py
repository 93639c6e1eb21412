"""Carries out what the roster decides and feeds it with what happens. Knows no Ray: lives come from a Launcher.

The Ray actor around it is deploy/fleet/controller.py; tests use a fake launcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from common.clock import Clock
from common.fleet import FleetSnapshot
from deploy.fleet.messages import Ending, FleetStatus, Life, Ready
from deploy.fleet.roster import Roster
from deploy.fleet.state import Action, Kill, Launch

_TICK_S = 0.2
_LOG = logging.getLogger(__name__)


class LifeHandle(Protocol):
    """One running life. The awaits never raise for a dead worker: its end is an `Ending`."""

    async def ready(self) -> Ready | Ending:
        """Wait until the worker serves or has ended."""
        ...

    async def ended(self) -> Ending:
        """Wait until the worker has ended."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Ask the worker to finish its requests and end; kill it after `grace_s`."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Launcher(Protocol):
    """Where lives come from."""

    def launch(self, life: Life) -> LifeHandle:
        """Begin a life."""
        ...

    async def running(self) -> Sequence[tuple[Life, LifeHandle]]:
        """Lives that go on from an earlier controller."""
        ...


class Supervisor:
    """Keeps the wanted number of replicas alive and tells watchers of every change."""

    def __init__(self, roster: Roster, launcher: Launcher, clock: Clock) -> None:
        self._roster = roster
        self._launcher = launcher
        self._clock = clock
        self._handles: dict[str, LifeHandle] = {}  # by incarnation
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def run(self, replicas: int) -> None:
        """Adopt what runs, start what is missing, and tend the fleet until cancelled."""
        for life, handle in await self._launcher.running():
            self._roster.adopt(life, self._clock.now_s())
            self._follow_life(life, handle)
        await self._carry_out(self._roster.fill(replicas, self._clock.now_s()))
        while True:
            await self._carry_out(self._roster.tick(self._clock.now_s()))
            await asyncio.sleep(_TICK_S)

    async def watch(self, version: int, timeout_s: float) -> FleetSnapshot:
        """The snapshot, as soon as its version exceeds `version`; the unchanged one after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._roster.snapshot.version > version)
        except TimeoutError:
            pass
        return self._roster.snapshot

    def beat(self, life: Life) -> None:
        """A replica renews its lease."""
        self._roster.on_beat(life, self._clock.now_s())

    async def drain(self, replica_id: str) -> None:
        """Let one replica leave for good. Raises KeyError for an unknown one."""
        await self._carry_out(self._roster.drain(replica_id, self._clock.now_s()))

    def status(self) -> FleetStatus:
        """Everything a person may want to know."""
        return self._roster.status(self._clock.now_s())

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            _LOG.info("%s", action)
            life = action.life
            if isinstance(action, Launch):
                self._follow_life(life, self._launcher.launch(life))
            elif handle := self._handles.get(life.incarnation):
                if isinstance(action, Kill):
                    handle.kill()
                else:
                    self._spawn(handle.stop(action.grace_s))
        await self._notify()

    def _follow_life(self, life: Life, handle: LifeHandle) -> None:
        self._handles[life.incarnation] = handle
        self._spawn(self._follow(life, handle))

    async def _follow(self, life: Life, handle: LifeHandle) -> None:
        outcome = await handle.ready()
        if isinstance(outcome, Ready):
            self._roster.on_ready(life, outcome, self._clock.now_s())
            await self._notify()
            outcome = await handle.ended()
        _LOG.warning("%s %s ended: %s", life.replica_id, life.incarnation, outcome.reason)
        handle.kill()  # the actor outlives its worker
        del self._handles[life.incarnation]
        self._roster.on_ended(life, outcome, self._clock.now_s())
        await self._carry_out(self._roster.tick(self._clock.now_s()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _LOG.error("fleet task failed", exc_info=error)
