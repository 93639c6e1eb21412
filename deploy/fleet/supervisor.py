"""Carries out what the roster decides and feeds it with what happens. Knows no Ray: lives come from a Launcher.

The Ray actor around it is deploy/fleet/controller.py; tests use a fake launcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from common.clock import Clock
from common.errors import UserError
from common.fleet import FleetSnapshot
from deploy.fleet.description import FleetDescription
from deploy.fleet.kept import FleetState, Store
from deploy.fleet.messages import Beat, Ending, FleetStatus, Life, Ready, ReplicaSpec
from deploy.fleet.roster import Roster
from deploy.fleet.scaling import Warmer
from deploy.fleet.specs import Surroundings
from deploy.fleet.state import Action, Kill, Launch

_TICK_S = 0.2
_WARM_TIMEOUT_S = 60.0
_ADOPTION_S = 5.0  # an adopted replica that has not answered by then is told to gateways as it is
_LOG = logging.getLogger(__name__)


class LifeHandle(Protocol):
    """One running life. The awaits never raise for a dead worker: its end is an `Ending`."""

    async def placed(self) -> Ending | None:
        """Wait until it has its place on a node, or has ended."""
        ...

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

    def launch(self, life: Life, spec: ReplicaSpec) -> LifeHandle:
        """Begin a life."""
        ...

    async def running(self) -> Sequence[tuple[Life, LifeHandle]]:
        """Lives that go on from an earlier controller."""
        ...

    async def has_room(self, spec: ReplicaSpec) -> bool:
        """Whether one more replica would find a place at once."""
        ...


class Supervisor:
    """Keeps the wanted number of replicas alive and tells watchers of every change."""

    def __init__(
        self, roster: Roster, launcher: Launcher, store: Store, clock: Clock, warmer: Warmer | None = None
    ) -> None:
        self._roster = roster
        self._launcher = launcher
        self._store = store
        self._clock = clock
        self._warmer = warmer
        self._handles: dict[str, LifeHandle] = {}  # by incarnation
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._is_settled = asyncio.Event()  # what an earlier controller left is known
        self._saved: FleetState | None = None

    @property
    def snapshot(self) -> FleetSnapshot:
        """What watchers are told now."""
        return self._roster.snapshot

    async def run(self) -> None:
        """Go on from what was kept, adopt what runs, and tend the fleet until cancelled."""
        self._saved = self._store.load()
        if self._saved is not None:
            self._roster.restore(self._saved)
        answers = [self._adopt(life, handle) for life, handle in await self._launcher.running()]
        if answers:
            await asyncio.wait([asyncio.create_task(answer.wait()) for answer in answers], timeout=_ADOPTION_S)
        self._is_settled.set()
        while True:
            await self._tick()
            await asyncio.sleep(_TICK_S)

    async def settled(self) -> None:
        """Wait until it is known what an earlier controller left; before that nothing can be decided."""
        await self._is_settled.wait()

    async def apply(
        self, description: FleetDescription, specs: Mapping[str, ReplicaSpec], around: Surroundings
    ) -> list[str]:
        """Make the fleet that of `description`. Returns what differs, one line each."""
        changes = self._roster.apply(description, specs, around)
        await self._tick()
        return changes

    async def scale(self, model: str, replicas: int) -> None:
        """Have this many replicas of a model. Raises KeyError for an unknown one."""
        self._roster.scale(model, replicas)
        await self._tick()

    async def begin_trial(self, model: str, engine: Mapping[str, Any], owner: str, *, instead: bool) -> str:
        """Have a canary of a model with these engine settings. Returns its version. Raises UserError."""
        spec = self._roster.trial_spec(model, engine, instead=instead)
        if not instead and not await self._launcher.has_room(spec):
            raise UserError(
                f"There is no room for one more replica of {spec.model}: add a node, scale it down by one, or "
                "experiment in the place of one of its replicas (--in-place)."
            )
        self._roster.begin_trial(spec, owner, self._clock.now_s(), instead=instead)
        await self._tick()
        return spec.version

    def renew_trial(self, model: str, owner: str) -> bool:
        """The owner of an experiment is still there. False: it is over for the fleet."""
        return self._roster.renew_trial(model, owner, self._clock.now_s())

    async def end_trial(self, model: str, owner: str, *, keep: bool) -> bool:
        """Let the canary go, or make all replicas like it. False if the experiment was over already."""
        is_ended = self._roster.end_trial(model, owner, keep=keep)
        await self._tick()
        return is_ended

    async def watch(self, version: int, timeout_s: float) -> FleetSnapshot:
        """The snapshot, as soon as its version exceeds `version`; the unchanged one after `timeout_s`."""
        await self.settled()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._roster.snapshot.version > version)
        except TimeoutError:
            pass
        return self.snapshot

    async def beat(self, beat: Beat) -> bool:
        """A replica renews its lease. False: the fleet has given that life up, it should end."""
        if not self._is_settled.is_set():
            return True  # perhaps it is still to be adopted
        before = self._roster.snapshot.version
        goes_on = self._roster.on_beat(beat, self._clock.now_s())
        if self._roster.snapshot.version != before:
            await self._notify()
        return goes_on

    async def drain(self, replica_id: str) -> None:
        """Let one replica leave; another one takes its place. Raises KeyError for an unknown one."""
        await self._carry_out(self._roster.drain(replica_id, self._clock.now_s()))

    async def status(self) -> FleetStatus:
        """Everything a person may want to know."""
        await self.settled()
        return self._roster.status(self._clock.now_s())

    async def _tick(self) -> None:
        room_for = [spec.version for spec in self._roster.wants_room() if await self._launcher.has_room(spec)]
        await self._carry_out(self._roster.tick(self._clock.now_s(), frozenset(room_for)))
        self._save()

    def _save(self) -> None:
        state = self._roster.state
        if state is not None and state != self._saved:
            self._store.save(state)
            self._saved = state

    def _adopt(self, life: Life, handle: LifeHandle) -> asyncio.Event:
        """Returns what is set as soon as it is known how that life is."""
        answered = asyncio.Event()
        if self._roster.adopt(life, self._clock.now_s()):
            self._handles[life.incarnation] = handle
            self._spawn(self._follow(life, handle, answered))
        else:
            _LOG.warning("%s is ended: nobody wants it any more", life)
            handle.kill()
            answered.set()
        return answered

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            _LOG.info("%s", action)
            life = action.life
            if isinstance(action, Launch):
                spec = self._roster.spec_of(life)
                assert spec is not None, f"{life} has no spec"
                begun = self._handles[life.incarnation] = self._launcher.launch(life, spec)
                self._spawn(self._follow(life, begun))
            elif handle := self._handles.get(life.incarnation):
                if isinstance(action, Kill):
                    handle.kill()
                else:
                    self._spawn(handle.stop(action.grace_s))
        await self._notify()

    async def _follow(self, life: Life, handle: LifeHandle, answered: asyncio.Event | None = None) -> None:
        """From launch, or from adoption where `answered` waits for the first news, to its end."""
        outcome: Ready | Ending | None = await handle.placed()
        if outcome is None:
            self._roster.on_placed(life, self._clock.now_s())
            await self._notify()
            outcome = await handle.ready()
        if isinstance(outcome, Ready):
            if answered is None:
                await self._warm(life, outcome)
            self._roster.on_ready(life, outcome, self._clock.now_s())
            if answered is not None:
                answered.set()
            await self._notify()
            outcome = await handle.ended()
        _LOG.warning("%s %s ended: %s", life.replica_id, life.incarnation, outcome.reason)
        handle.kill()  # the actor outlives its worker
        del self._handles[life.incarnation]
        self._roster.on_ended(life, outcome, self._clock.now_s())
        if answered is not None:
            answered.set()
        await self._tick()

    async def _warm(self, life: Life, ready: Ready) -> None:
        siblings = self._roster.siblings(life, self._clock.now_s())
        if self._warmer is None or siblings is None:
            return
        try:
            await asyncio.wait_for(self._warmer.warm(ready.url, *siblings), _WARM_TIMEOUT_S)
        except Exception as error:  # whatever it is, the replica serves
            _LOG.warning("%s serves without having been warmed: %r", life.replica_id, error)

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
