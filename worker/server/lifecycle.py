"""Where a replica is in its life, and the table of legal moves."""

from __future__ import annotations

from enum import Enum

from worker.server.errors import RequestFault


class ReplicaState(Enum):
    """STARTING: the model loads. DRAINING: running requests may finish, new ones are refused. FAILED: no scheduler."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"

    @property
    def has_scheduler(self) -> bool:
        """Whether the scheduler can be asked."""
        return self in (ReplicaState.READY, ReplicaState.DRAINING)


_LEGAL: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.STARTING: frozenset({ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.FAILED}),
    ReplicaState.READY: frozenset({ReplicaState.DRAINING, ReplicaState.FAILED}),
    ReplicaState.DRAINING: frozenset({ReplicaState.FAILED}),
    ReplicaState.FAILED: frozenset(),
}

SHUTTING_DOWN = "The server is shutting down."
_REFUSALS = {
    ReplicaState.STARTING: "The model is loading; try again soon.",
    ReplicaState.DRAINING: SHUTTING_DOWN,
    ReplicaState.FAILED: "The server has failed and is ending; its log says why.",
}


class Lifecycle:
    """Owner of the state. Starts in STARTING."""

    def __init__(self) -> None:
        self.state = ReplicaState.STARTING
        self.was_ready = False

    def move_to(self, state: ReplicaState) -> None:
        """Change state; an illegal move is an AssertionError."""
        assert state in _LEGAL[self.state], f"{self.state.name} -> {state.name}"
        self.state = state
        self.was_ready |= state is ReplicaState.READY

    def check_admits(self) -> None:
        """Raise RequestFault (503) unless new requests are taken."""
        if self.state is not ReplicaState.READY:
            raise RequestFault(503, _REFUSALS[self.state])
