"""What one exchange has seen of its answer, and when: for time-outs, metrics, the ledger and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.fleet.worker import Ticket
from gateway.proxy.inbound import Inbound
from gateway.proxy.usage import find_usage
from gateway.routing.policy import Choice

if TYPE_CHECKING:
    from gateway.proxy.forwarder import Forwarder


class Progress:
    """The base of an exchange."""

    __slots__ = (
        "_attempt_start_s",
        "_forwarder",
        "_gaps_s",
        "_last_data",
        "_moved",
        "_paused",
        "_piece_s",
        "_progress_s",
        "_scan_usage",
        "_status",
        "_ticket",
        "choice",
        "inbound",
        "start_s",
    )

    def __init__(self, forwarder: Forwarder, inbound: Inbound) -> None:
        self._forwarder = forwarder
        self.inbound = inbound
        self.choice: Choice | None = None
        self._ticket: Ticket | None = None
        self._status = 0  # of the head that was sent, 0 before
        self._last_data = b""  # of the body, with or without chunked coding; empty: none came
        self._moved = False  # body bytes came since `_progress_s`
        self._paused = False
        self._scan_usage = True
        self.start_s = self._attempt_start_s = forwarder.clock.now_s()
        # When body bytes last came, as far as the last sweep saw, or the client began or ceased to hold us back.
        self._progress_s = 0.0
        self._gaps_s: list[float] | None = None  # of a stream: where the times between its pieces go
        self._piece_s = 0.0  # when its last piece came

    def _too_long(self, now_s: float, *, at_worker: bool) -> str | None:
        """Which time-out has passed, None if none has. `at_worker`: a worker has the request; other waits have bounds
        of their own beside the total one. While the client holds us back, nothing can come from a worker."""
        if self._moved:
            self._note_progress(now_s)
        begun = bool(self._status)
        since_s = self._progress_s if begun else self._attempt_start_s
        silence_s = now_s - since_s if at_worker and not self._paused else 0.0
        return self._forwarder.timeouts.exceeded(age_s=now_s - self.start_s, silence_s=silence_s, begun=begun)

    def _is_stuck(self, now_s: float) -> bool:
        """Whether the client has taken nothing for as long as a worker may send nothing."""
        return self._paused and now_s - self._progress_s > self._forwarder.timeouts.idle_s

    def _note_progress(self, now_s: float) -> None:
        assert self.choice is not None
        self._moved = False
        self._progress_s = self.choice.worker.load.last_progress_s = now_s

    def _look_for_usage(self, payload: bytes) -> None:
        usage = find_usage(payload)
        if usage is not None and self.choice is not None:
            self._scan_usage = False
            self._forwarder.note_usage(self.inbound, self.choice, *usage)
