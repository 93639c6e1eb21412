"""One generation request: choose a worker, send, relay, retry elsewhere before the first byte, account, clean up.

Callback-driven, so that both data paths share it: the downstream feeds it `start`, `pause`, `resume` and `cancel`; the
upstream connection feeds it as a Sink. Whatever happens, `_finish` runs once, and the sweep sees that it does in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from common.errors import HttpFault
from gateway.proxy.chunked import payload_of
from gateway.proxy.downstream import Downstream, respond
from gateway.proxy.http1 import Headers, ResponseHead
from gateway.proxy.inbound import Inbound
from gateway.proxy.pool import ConnectionPool
from gateway.proxy.progress import Progress
from gateway.proxy.sse import FRAMED_EVENT_ENDS, LAST_EVENTS, EventGate, error_event
from gateway.proxy.upstream import ConnectError, Failure, FailureKind, UpstreamConnection
from gateway.proxy.usage import CACHED_KEY
from gateway.resilience.breaker import BreakerState
from gateway.resilience.outcomes import RETRIED_STATUSES, Outcome, outcome_of, rest_of
from gateway.routing.policy import RouteRequest
from gateway.routing.router import RETRY_AFTER_S, RouteFault

if TYPE_CHECKING:
    from gateway.proxy.forwarder import Forwarder

_CLIENT_CLOSED_STATUS = 499  # never sent; labels the metric


class Exchange(Progress):
    """The life of one request in the gateway."""

    __slots__ = ("_connection", "_downstream", "_gate", "_relay", "_rest_s", "_tried", "done")

    def __init__(self, forwarder: Forwarder, inbound: Inbound, downstream: Downstream) -> None:
        super().__init__(forwarder, inbound)
        self._downstream = downstream
        self._connection: UpstreamConnection | None = None
        self._tried: list[str] = []
        self._gate: EventGate | None = None
        self._relay: Callable[[bytes], None] | None = None  # takes whole chunks; None: not now
        self._rest_s = 0.0  # for which the worker wants to be spared
        self.done = False

    # --- downstream's side ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; everything after comes by callbacks."""
        forwarder = self._forwarder
        forwarder.enter(self)
        if forwarder.gate is None or self.inbound.head.method != "POST":
            self._attempt()
        else:
            forwarder.gate.come(self)

    def cancel(self) -> None:
        """The client left."""
        if self.done:
            return
        if self._last_data.endswith(LAST_EVENTS):  # it has all it wants, and does not wait for the end of the body
            self._finish(self._status, Outcome.SERVED)
            return
        self._forwarder.metrics.client_disconnects += 1
        self._finish(_CLIENT_CLOSED_STATUS, Outcome.CLIENT_FAULT)

    def pause(self) -> None:
        """The client reads slower than the worker writes."""
        self._paused = True
        self._progress_s = self._forwarder.clock.now_s()
        if self._connection is not None:
            self._connection.pause_reading()

    def resume(self) -> None:
        """The client caught up."""
        self._paused = False
        self._progress_s = self._forwarder.clock.now_s()
        if self._connection is not None:
            self._connection.resume_reading()

    def check_time(self, now_s: float) -> None:
        """Called by the sweep, whatever the request waits for: give up where a time-out has passed."""
        if self._is_stuck(now_s):
            self.cancel()
            self._downstream.abort()
            return
        message = self._too_long(now_s, at_worker=self._connection is not None)
        if not message:
            return
        failure = Failure(FailureKind.TIMEOUT, message)
        if self._connection is not None:
            self._connection.fail(failure)
        else:
            self._end(failure, HttpFault(failure.answer[0], f"There was {message}.", code=failure.answer[1]))

    def worker_silent(self) -> None:
        """The worker hangs. Who waits for an answer's beginning goes elsewhere; with nobody else, it waits on."""
        if not self._status and self._connection is not None:
            self._retried("silent", Outcome.REPLICA_FAULT)

    def worker_hangs(self) -> None:
        """The worker hangs, and nothing comes from it for anybody. What has begun there will not go on."""
        if self._status and self._connection is not None:
            self._connection.fail(Failure(FailureKind.HUNG, "the worker answers no probe and sends nothing any more"))

    def shut_down(self) -> None:
        """The gateway stops and the grace time is over."""
        failure = Failure(FailureKind.CUT, "the gateway is shutting down")
        self._end(failure, HttpFault(503, failure.message, code="shutting_down"))

    @property
    def sent(self) -> bool:
        """Whether a worker has it."""
        return self._connection is not None

    # --- Guest of the gate ------------------------------------------------------------------------------------------

    @property
    def headers(self) -> Headers:
        return self.inbound.head.headers

    @property
    def request_id(self) -> str:
        return self.inbound.request_id.decode("latin-1")

    @property
    def body_bytes(self) -> int:
        return len(self.inbound.body)

    def admitted(self) -> None:
        self._attempt()

    def turn_away(self, fault: HttpFault, retry_after_s: int | None) -> None:
        self._refuse(fault, retry_after_s=retry_after_s)

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _prepared(self, route: RouteRequest) -> None:
        """The tokens of the prompt are known, or it is known that they are not."""
        self.inbound = msgspec.structs.replace(self.inbound, route=route)
        self._attempt()

    def _attempt(self) -> None:
        if self.done:
            return
        forwarder, inbound = self._forwarder, self.inbound
        if forwarder.preparer is not None and inbound.route.tokens is None and inbound.route.text:
            forwarder.preparer.prepare(inbound.body, inbound.route, self._prepared, inbound.request_id)
            return
        begin_s = forwarder.clock.now_s()
        try:
            choice = forwarder.router.route(inbound.route, self._tried)
        except RouteFault as fault:
            self._refuse(fault)
            return
        self.choice = choice
        forwarder.chose(self, choice)
        self._tried.append(choice.worker.url)
        self._attempt_start_s = now_s = forwarder.clock.now_s()
        forwarder.metrics.choice_times_s.observe(now_s - begin_s)
        release_s = None if inbound.route.stream else now_s + choice.wait_s
        self._ticket = choice.worker.load.begin(choice.uncached_tokens, release_s)
        if choice.worker.guard.breaker.state is BreakerState.HALF_OPEN:
            self._ticket.trial = forwarder.begin_trial(choice.worker)
        self._dispatch(fresh=False)

    def _dispatch(self, *, fresh: bool) -> None:
        assert self.choice is not None
        pool = self._forwarder.pools.get(self.choice.worker.url)
        connection = None if fresh else pool.take()
        if connection is not None:
            self._send(connection, pool)
        else:
            self._forwarder.spawn(self._connect(pool))

    async def _connect(self, pool: ConnectionPool) -> None:
        try:
            connection = await pool.connect(self._forwarder.timeouts.connect_s)
        except ConnectError as error:
            if not self.done:
                self.on_fail(error.failure)
            return
        if self.done:
            pool.put(connection)
        else:
            self._send(connection, pool)

    def _send(self, connection: UpstreamConnection, pool: ConnectionPool) -> None:
        inbound = self.inbound
        self._connection = connection
        head = pool.head(inbound.head, len(inbound.body), inbound.request_id)
        connection.send(inbound.head.method, head, inbound.body, self)
        if self._paused:
            connection.pause_reading()

    def _retried(self, cause: str, outcome: Outcome) -> bool:
        """Leave this worker for another one, now or a little later. False: there is none to be tried."""
        forwarder = self._forwarder
        wait_s = forwarder.retry_after_s(self.inbound.route, self._tried, self.start_s)
        if wait_s is None:
            return False
        assert self.choice is not None
        self._leave_worker(outcome, cause)
        forwarder.router.policy.failed(self.choice)
        forwarder.retried(self, cause)
        if wait_s > 0:
            forwarder.call_later(wait_s, self._attempt)
        else:
            self._attempt()
        return True

    def _leave_worker(self, outcome: Outcome, cause: str) -> None:
        """The attempt is over: account for it, and say what it showed about the worker."""
        ticket, choice = self._ticket, self.choice
        if ticket is not None and choice is not None and not ticket.ended:
            ticket.end()
            if ticket.trial or outcome is Outcome.BACK_PRESSURE or outcome is Outcome.REPLICA_FAULT:
                self._forwarder.judge(choice.worker, ticket, outcome, self._rest_s, cause or f"status {self._status}")
            elif outcome is Outcome.SERVED:
                choice.worker.guard.breaker.successes += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()  # last: whatever goes wrong there, the books are right

    # --- Sink -------------------------------------------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        if head.status in RETRIED_STATUSES:
            self._rest_s = rest_of(head.headers)
            if self._retried(f"status_{head.status}", outcome_of(head.status)):
                return
        assert self.choice is not None
        self._status = head.status
        if head.status >= 400:
            self._forwarder.router.policy.failed(self.choice)
        self._progress_s = self._forwarder.clock.now_s()
        if head.event_stream:
            self._gate, self.inbound = EventGate(), self.inbound.begun()
        extra = self.inbound.answer_headers(self.choice)
        if self._forwarder.draining:
            extra.append((b"connection", b"close"))
        self._downstream.start_relay(head, extra)

    def on_chunk(self, framed: bytes) -> None:
        """The way of nearly all of a stream's events."""
        relay = self._relay
        if relay is None or not framed.endswith(FRAMED_EVENT_ENDS):
            self.on_data(payload_of(framed), framed)
            self.on_flush()
            return
        if self._scan_usage and framed.find(CACHED_KEY) >= 0:
            self._look_for_usage(framed)
        if self._gaps_s is not None:
            now_s = self._forwarder.clock.now_s()
            self._gaps_s.append(now_s - self._piece_s)
            self._piece_s = now_s
        self._moved = True
        self._last_data = framed
        relay(framed)

    def on_data(self, payload: bytes, framed: bytes | None) -> None:
        if not self._last_data:
            self._first_data(self._forwarder.clock.now_s())
        elif self._gaps_s is not None:
            now_s = self._forwarder.clock.now_s()
            self._gaps_s.append(now_s - self._piece_s)
            self._piece_s = now_s
        self._moved = True
        self._last_data = payload
        if self._scan_usage:
            self._look_for_usage(payload)
        gate = self._gate
        if gate is not None:
            passed = gate.feed(payload)
            self._relay = None if gate.holds else self._downstream.relay
            if passed is not None:
                if passed:
                    self._downstream.data(passed, None)
                return
        self._downstream.data(payload, framed)

    def _first_data(self, now_s: float) -> None:
        assert self._ticket is not None and self.choice is not None
        self._note_progress(now_s)
        self._ticket.prefilled()
        if self.inbound.route.stream and self._status < 400:
            self._gaps_s = self._forwarder.metrics.gaps_of(self.choice.worker.model)
            self._piece_s = now_s
            self._forwarder.first_token(self, now_s - self.start_s)
            self._forwarder.router.policy.started(self.choice, now_s - self._attempt_start_s)

    def on_flush(self) -> None:
        if not self.done and self._status:
            self._downstream.flush()

    def on_end(self) -> None:
        if self._gate is not None:
            rest = self._gate.rest()
            if rest:
                self._downstream.data(rest, None)
        self._connection = None
        self._finish(self._status, outcome_of(self._status))
        self._downstream.end()

    def on_fail(self, failure: Failure) -> None:
        self._connection = None
        if failure.kind is FailureKind.STALE:
            self._dispatch(fresh=True)
            return
        assert self.choice is not None
        self._forwarder.note_failure(self.choice.worker, failure)
        fault = Outcome.REPLICA_FAULT
        if self._gate is not None and self._last_data.endswith(LAST_EVENTS):
            self._complete(b"", fault, failure.kind.value)
        elif self._status:
            self._break_off(failure, fault)
        # After a time-out the worker may still be at it: another one would do the same work twice.
        elif failure.kind is FailureKind.TIMEOUT or not self._retried(failure.kind.value, fault):
            status, code = failure.answer
            message = f"Worker {self.choice.worker.name}: {failure.message}."
            self._refuse(HttpFault(status, message, code=code), fault)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _break_off(self, failure: Failure, outcome: Outcome, answer: tuple[int, str] | None = None) -> None:
        """The answer has begun and cannot be completed. `answer`: status and code, if not the failure's own."""
        event_stream = self._gate is not None
        status, code = answer or failure.answer
        self._finish(status, outcome, failure.kind.value)
        if event_stream:
            text = f"The stream broke: {failure.message}."
            self._downstream.data(error_event(status, text, code, self.inbound.endpoint), None)
            self._downstream.end()
        else:
            self._downstream.abort()

    def _complete(self, ending: bytes, outcome: Outcome, cause: str) -> None:
        """The client has all it wants, but for `ending`, although its worker broke off."""
        self._finish(self._status, outcome, cause)
        if ending:
            self._downstream.data(ending, None)
        self._downstream.end()

    def _end(self, failure: Failure, fault: HttpFault) -> None:
        """End it here, through no fault of the worker: by `fault`, or as an answer that broke off."""
        if self._status:
            self._break_off(failure, Outcome.CLIENT_FAULT, (fault.status, fault.code or ""))
        else:
            self._refuse(fault)

    def _refuse(
        self, fault: HttpFault, outcome: Outcome = Outcome.CLIENT_FAULT, retry_after_s: int | None = None
    ) -> None:
        """Answer with an error of our own."""
        if self.choice is not None:
            self._forwarder.router.policy.failed(self.choice)
        self._finish(fault.status, outcome, fault.code or "")
        if retry_after_s is None and fault.status == 503:
            retry_after_s = RETRY_AFTER_S
        respond(self._downstream, fault.status, *self.inbound.fault_answer(fault, self.choice, retry_after_s))

    def _finish(self, status: int, outcome: Outcome, cause: str = "") -> None:
        assert not self.done
        self.done = True
        if self._moved:
            self._note_progress(self._forwarder.clock.now_s())
        self._forwarder.leave(self, status)
        self._leave_worker(outcome, cause)
