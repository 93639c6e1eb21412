"""The life cycle of one replica as a pure state machine: events and the time go in, actions come out.

Nothing here starts or kills anything; deploy/fleet/supervisor.py carries the actions out. Events of an earlier life
(another incarnation) change nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from common.fleet import ReplicaRecord
from deploy.fleet.messages import Ending, Life, Ready
from deploy.fleet.scaling import ReplicaLoad

EXIT_USER_FAULT = 2  # a worker that refuses its settings; where none of its lives was ready, no restart can help


class State(enum.Enum):
    """Where a replica is. All but the last are what gateways see."""

    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"  # its lease ended; gateways judge by their own probes, and it may come back
    DRAINING = "draining"
    FAILED = "failed"  # its life ended; the next one begins at restart_at_s, if at all
    GONE = "gone"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.FAILED, State.GONE}),
    State.READY: frozenset({State.DRAINING, State.SILENT, State.FAILED}),
    State.SILENT: frozenset({State.READY, State.FAILED, State.GONE}),
    State.DRAINING: frozenset({State.GONE}),
    State.FAILED: frozenset({State.STARTING, State.GONE}),
    State.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Time limits of a replica's life and how restarts are spaced."""

    start_timeout_s: float = 600.0  # from the place on a node
    place_notice_s: float = 5.0  # waiting longer for a place is told
    lease_s: float = 15.0  # silence after which a ready replica is called silent
    silence_s: float = 15.0  # further silence after which it counts as dead
    drain_notice_s: float = 1.0  # gateways stop sending before the worker is told to stop
    drain_timeout_s: float = 60.0
    stable_s: float = 60.0  # a life that was ready this long resets the back-off
    backoff_first_s: float = 1.0  # the first restart is immediate, the second waits this long, then doubling
    backoff_max_s: float = 30.0
    crash_loop_lives: int = 3  # unstable lives in a row that make a crash loop

    def backoff_s(self, unstable_lives: int) -> float:
        """Seconds between the end of a life and the next, given how many in a row were unstable."""
        if unstable_lives <= 1:
            return 0.0
        return min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(unstable_lives - 2, 30))


@dataclass(frozen=True, slots=True)
class Launch:
    """Begin this life."""

    life: Life


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask this life to finish its running requests and end within `grace_s`."""

    life: Life
    grace_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End this life at once."""

    life: Life


Action = Launch | Stop | Kill


@dataclass(slots=True)
class Replica:
    """One replica and its current life. Created by `first` or `adopted`; every method gets the time in seconds."""

    policy: Policy
    new_incarnation: Callable[[], str]
    life: Life
    state: State
    since_s: float  # when the state was entered
    ready: Ready | None = None
    lease_until_s: float = 0.0
    restart_at_s: float | None = None
    unstable_lives: int = 0
    last_ending: Ending | None = None
    was_ever_ready: bool = False
    placed_at_s: float | None = None  # when this life got its place on a node
    ready_at_s: float = 0.0  # when it became ready
    load: ReplicaLoad | None = None  # of this life
    load_at_s: float = 0.0
    _stop_sent: bool = field(default=False, init=False)
    _waits_long: bool = field(default=False, init=False)  # for a place

    @classmethod
    def first(
        cls,
        replica_id: str,
        policy: Policy,
        new_incarnation: Callable[[], str],
        now_s: float,
        *,
        model: str = "",
        version: str = "",
    ) -> tuple[Replica, list[Action]]:
        """A new replica at the start of its first life."""
        life = Life(replica_id=replica_id, incarnation=new_incarnation(), model=model, version=version)
        return cls(policy, new_incarnation, life, State.STARTING, now_s), [Launch(life)]

    @classmethod
    def adopted(cls, life: Life, policy: Policy, new_incarnation: Callable[[], str], now_s: float) -> Replica:
        """A replica found running by a controller that was itself restarted; its `on_ready` is still to come."""
        return cls(policy, new_incarnation, life, State.STARTING, now_s)

    @property
    def is_crash_looping(self) -> bool:
        """Whether so many lives in a row were short that a person should look."""
        return self.unstable_lives >= self.policy.crash_loop_lives

    @property
    def is_given_up(self) -> bool:
        """Failed for good: no restart is due."""
        return self.state is State.FAILED and self.restart_at_s is None

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting for it to become ready is in vain, as far as anybody can tell."""
        return self.state is not State.READY and (self.is_crash_looping or self.is_given_up)

    @property
    def waits_for_place(self) -> bool:
        """Whether it has no place on a node yet, for longer than `place_notice_s`."""
        return self.state is State.STARTING and self._waits_long

    def on_placed(self, incarnation: str, now_s: float) -> None:
        """This life has got its place on a node, and its worker starts."""
        if incarnation == self.life.incarnation and self.placed_at_s is None:
            self.placed_at_s = now_s
            self._waits_long = False

    def on_ready(self, incarnation: str, ready: Ready, now_s: float) -> None:
        """The worker of this life serves."""
        if incarnation == self.life.incarnation and self.state is State.STARTING:
            self.ready = ready
            self.was_ever_ready = True
            self.ready_at_s = now_s
            self.lease_until_s = now_s + self.policy.lease_s
            self._enter(State.READY, now_s)

    def on_beat(self, incarnation: str, now_s: float, load: ReplicaLoad | None = None) -> bool:
        """The replica renews its lease. False: that life is over for the fleet, and should end."""
        if incarnation != self.life.incarnation or self.state is State.FAILED:
            return False
        self.lease_until_s = now_s + self.policy.lease_s
        if load is not None:
            self.load, self.load_at_s = load, now_s
        if self.state is State.SILENT:
            self._enter(State.READY, now_s)
        return True

    def on_ended(self, incarnation: str, ending: Ending, now_s: float) -> None:
        """The worker of this life is no more."""
        if incarnation != self.life.incarnation:
            return
        if self.state is State.DRAINING:
            self._enter(State.GONE, now_s)
        elif self.state in (State.STARTING, State.READY, State.SILENT):
            self._fail(ending, now_s)

    def drain(self, now_s: float) -> list[Action]:
        """Leave the fleet for good: a ready replica finishes its running requests first."""
        if self.state is State.READY:
            self._enter(State.DRAINING, now_s)
        elif self.state in (State.STARTING, State.SILENT, State.FAILED):
            was_running = self.state is not State.FAILED
            self._enter(State.GONE, now_s)
            return [Kill(self.life)] if was_running else []
        return []

    def tick(self, now_s: float) -> list[Action]:
        """What the passing of time asks for."""
        if self.state is State.STARTING and self.placed_at_s is None:
            self._waits_long = now_s - self.since_s >= self.policy.place_notice_s
        if self.state is State.STARTING and self._starts_for_s(now_s) >= self.policy.start_timeout_s:
            return self._give_up_life(f"not ready after {self.policy.start_timeout_s:.0f} s", now_s)
        if self.state is State.READY and now_s >= self.lease_until_s:
            self._enter(State.SILENT, now_s)
        if self.state is State.SILENT and now_s - self.since_s >= self.policy.silence_s:
            return self._give_up_life(self._silence(), now_s)
        if self.state is State.FAILED and self.restart_at_s is not None and now_s >= self.restart_at_s:
            return self._restart(now_s)
        if self.state is State.DRAINING:
            return self._tick_draining(now_s)
        return []

    def record(self) -> ReplicaRecord:
        """What gateways are told. Not for a replica that is gone."""
        assert self.state is not State.GONE
        serving = self.ready if self.state in (State.READY, State.SILENT, State.DRAINING) else None
        return ReplicaRecord(
            replica_id=self.life.replica_id,
            incarnation=self.life.incarnation,
            url=serving.url if serving else "",
            model=serving.model if serving else self.life.model,
            state=self.state.value,
            max_total_num_tokens=serving.max_total_num_tokens if serving else 0,
            max_running_requests=serving.max_running_requests if serving else 0,
            restarts=self.life.restarts,
            version=self.life.version,
            node=serving.node if serving else "",
            pid=serving.pid if serving else 0,
            message=self._message(),
            crash_looping=self.is_crash_looping,
        )

    def _starts_for_s(self, now_s: float) -> float:
        """Waiting for a place does not count."""
        return 0.0 if self.placed_at_s is None else now_s - self.placed_at_s

    def _silence(self) -> str:
        return f"no sign of life for {self.policy.lease_s + self.policy.silence_s:.0f} s"

    def _message(self) -> str:
        if self.state is State.SILENT:
            return f"no sign of life for {self.policy.lease_s:.0f} s"
        if self.waits_for_place:
            return "waits for a node that has room, or for its turn to start there"
        if self.last_ending is None or self.state in (State.READY, State.DRAINING):
            return ""
        if self.is_crash_looping:
            return f"crash loop, {self.unstable_lives} short lives in a row, the last: {self.last_ending.reason}"
        return self.last_ending.reason

    def _tick_draining(self, now_s: float) -> list[Action]:
        waited_s = now_s - self.since_s
        if waited_s >= self.policy.drain_notice_s + self.policy.drain_timeout_s:
            self._enter(State.GONE, now_s)
            return [Kill(self.life)]
        if waited_s >= self.policy.drain_notice_s and not self._stop_sent:
            self._stop_sent = True
            return [Stop(self.life, self.policy.drain_timeout_s)]
        return []

    def _restart(self, now_s: float) -> list[Action]:
        self.life = Life(
            replica_id=self.life.replica_id,
            incarnation=self.new_incarnation(),
            restarts=self.life.restarts + 1,
            model=self.life.model,
            version=self.life.version,
        )
        self.ready = None
        self.placed_at_s = None
        self._waits_long = False
        self.load = None
        self.restart_at_s = None
        self._enter(State.STARTING, now_s)
        return [Launch(self.life)]

    def _give_up_life(self, reason: str, now_s: float) -> list[Action]:
        self._fail(Ending(reason=reason), now_s)
        return [Kill(self.life)]

    def _fail(self, ending: Ending, now_s: float) -> None:
        was_serving = self.state in (State.READY, State.SILENT)
        was_stable = was_serving and now_s - self.ready_at_s >= self.policy.stable_s
        refused = ending.code == EXIT_USER_FAULT and not self.was_ever_ready
        self.unstable_lives = 0 if was_stable else self.unstable_lives + 1
        self.last_ending = ending
        self.restart_at_s = None if refused else now_s + self.policy.backoff_s(self.unstable_lives)
        self._enter(State.FAILED, now_s)

    def _enter(self, state: State, now_s: float) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.since_s = now_s
