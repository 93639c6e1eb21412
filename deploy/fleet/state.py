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

EXIT_USER_FAULT = 2  # a worker that refuses its settings; where none of its lives was ready, no restart can help


class State(enum.Enum):
    """Where a replica is. The first four are what gateways see."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"  # its life ended; the next one begins at restart_at_s, if at all
    GONE = "gone"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.FAILED, State.GONE}),
    State.READY: frozenset({State.DRAINING, State.FAILED}),
    State.DRAINING: frozenset({State.GONE}),
    State.FAILED: frozenset({State.STARTING, State.GONE}),
    State.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Time limits of a replica's life and how restarts are spaced."""

    start_timeout_s: float = 600.0
    lease_s: float = 15.0  # silence after which a ready replica counts as dead
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
    _stop_sent: bool = field(default=False, init=False)

    @classmethod
    def first(
        cls, replica_id: str, policy: Policy, new_incarnation: Callable[[], str], now_s: float
    ) -> tuple[Replica, list[Action]]:
        """A new replica at the start of its first life."""
        life = Life(replica_id=replica_id, incarnation=new_incarnation())
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

    def on_ready(self, incarnation: str, ready: Ready, now_s: float) -> None:
        """The worker of this life serves."""
        if incarnation == self.life.incarnation and self.state is State.STARTING:
            self.ready = ready
            self.was_ever_ready = True
            self.lease_until_s = now_s + self.policy.lease_s
            self._enter(State.READY, now_s)

    def on_beat(self, incarnation: str, now_s: float) -> None:
        """The replica renews its lease."""
        if incarnation == self.life.incarnation:
            self.lease_until_s = now_s + self.policy.lease_s

    def on_ended(self, incarnation: str, ending: Ending, now_s: float) -> None:
        """The worker of this life is no more."""
        if incarnation != self.life.incarnation:
            return
        if self.state is State.DRAINING:
            self._enter(State.GONE, now_s)
        elif self.state in (State.STARTING, State.READY):
            self._fail(ending, now_s)

    def drain(self, now_s: float) -> list[Action]:
        """Leave the fleet for good: a ready replica finishes its running requests first."""
        if self.state is State.READY:
            self._enter(State.DRAINING, now_s)
        elif self.state in (State.STARTING, State.FAILED):
            was_starting = self.state is State.STARTING
            self._enter(State.GONE, now_s)
            return [Kill(self.life)] if was_starting else []
        return []

    def tick(self, now_s: float) -> list[Action]:
        """What the passing of time asks for."""
        if self.state is State.STARTING and now_s - self.since_s >= self.policy.start_timeout_s:
            return self._give_up_life(f"not ready after {self.policy.start_timeout_s:.0f} s", now_s)
        if self.state is State.READY and now_s >= self.lease_until_s:
            return self._give_up_life(f"no sign of life for {self.policy.lease_s:.0f} s", now_s)
        if self.state is State.FAILED and self.restart_at_s is not None and now_s >= self.restart_at_s:
            return self._restart(now_s)
        if self.state is State.DRAINING:
            return self._tick_draining(now_s)
        return []

    def record(self) -> ReplicaRecord:
        """What gateways are told. Not for a replica that is gone."""
        assert self.state is not State.GONE
        serving = self.ready if self.state in (State.READY, State.DRAINING) else None
        return ReplicaRecord(
            replica_id=self.life.replica_id,
            incarnation=self.life.incarnation,
            url=serving.url if serving else "",
            model=serving.model if serving else "",
            state=self.state.value,
            max_total_num_tokens=serving.max_total_num_tokens if serving else 0,
            max_running_requests=serving.max_running_requests if serving else 0,
            restarts=self.life.restarts,
            node=serving.node if serving else "",
            pid=serving.pid if serving else 0,
            message=self._message(),
        )

    def _message(self) -> str:
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
        )
        self.ready = None
        self.restart_at_s = None
        self._enter(State.STARTING, now_s)
        return [Launch(self.life)]

    def _give_up_life(self, reason: str, now_s: float) -> list[Action]:
        self._fail(Ending(reason=reason), now_s)
        return [Kill(self.life)]

    def _fail(self, ending: Ending, now_s: float) -> None:
        was_stable = self.state is State.READY and now_s - self.since_s >= self.policy.stable_s
        refused = ending.code == EXIT_USER_FAULT and not self.was_ever_ready
        self.unstable_lives = 0 if was_stable else self.unstable_lives + 1
        self.last_ending = ending
        self.restart_at_s = None if refused else now_s + self.policy.backoff_s(self.unstable_lives)
        self._enter(State.FAILED, now_s)

    def _enter(self, state: State, now_s: float) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.since_s = now_s
