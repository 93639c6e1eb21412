"""Replacing the model's weights under load: read aside first, taken on when no request is half way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from itertools import takewhile
from threading import Thread

from common.clock import Clock
from common.errors import UserError
from worker.cache.pool import KvPool
from worker.engine.batch import ModelRunner, NewWeights
from worker.ipc.messages import CallReply, SchedulerMessage, UpdateWeights, WeightsUpdated
from worker.scheduler.policies.base import QueuePolicy
from worker.scheduler.queue import Lane, WaitingQueue
from worker.scheduler.request import Request
from worker.scheduler.rows import RequestTable

log = logging.getLogger(__name__)

UNDER_WAY = "The weights are being replaced already; wait for that answer."
BROKEN = "The weights cannot be loaded; the replica's log says why."
PAUSED = (
    "Generation is paused with {count} requests half way, whose answers would be by both old and new weights; abort "
    "them, or continue first."
)
TOO_LONG = "After {limit:g} s {count} requests had not ended, so the weights stay as they were."

_WAIT_S = 0.005


class HoldablePolicy:
    """A queue policy that can let in only those who have been in before and were retracted."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self.holds_new = False

    def order(self, lane: Lane) -> Iterable[Request]:
        """See `QueuePolicy`; without new requests while they are held back."""
        if self.holds_new:
            return takewhile(lambda request: request.num_retractions, lane)  # they are a lane's first
        return self._policy.order(lane)


class WeightUpdate:
    """At most one replacement at a time: a thread reads, then new requests wait until those that have begun end. So no
    answer is by both weights, and nothing computed by the old ones serves the new ones."""

    def __init__(
        self,
        runner: ModelRunner,
        emit: Callable[[SchedulerMessage], None],
        clock: Clock,
        pool: KvPool,
        table: RequestTable,
        waiting: WaitingQueue,
        admission: HoldablePolicy,
    ) -> None:
        self._runner = runner
        self._emit = emit
        self._clock = clock
        self._pool = pool
        self._table = table
        self._waiting = waiting
        self._admission = admission
        self._call: UpdateWeights | None = None
        self._loading: Future[NewWeights] = Future()
        self._held_since_s: float | None = None

    def begin(self, call: UpdateWeights) -> None:
        """Start reading what `call` asks for. It is answered when that has failed, or `take` has been called."""
        if self._call is not None:
            self._refuse(call, UNDER_WAY, status=409)
            return
        self._call, self._loading = call, Future()
        # A daemon: a replica that ends does not wait for it.
        Thread(target=self._load, args=(call, self._loading), name="weights", daemon=True).start()

    @property
    def aborts(self) -> bool:
        """Whether all requests are to be aborted before `take`."""
        return self._call is not None and self._call.abort_all

    def due(self, *, paused: bool) -> bool:
        """Whether `take` shall be called now. `paused`: who has begun does not go on. Ask before each step."""
        if self._call is None or not self._loading.done():
            return False
        if (fault := self._loading.exception()) is not None:
            self._fail(self._call, fault)
            return False
        count = self._table.num_used_rows + self._waiting.num_retracted
        if not count or self._call.abort_all:
            return True
        self._wait_for(self._call, count, paused=paused)
        return False

    def take(self) -> WeightsUpdated:
        """Take them on, and forget what the old ones have computed. No pass may be in flight, no request half way."""
        weights = self._loading.result()
        call = self._end()
        weights.use()
        self._pool.flush()
        log.info("The weights are those in %s from now on.", call.model_path)
        return WeightsUpdated(
            call_id=call.call_id,
            model_path=call.model_path,
            weight_version=call.weight_version,
            num_held_back=len(self._waiting),
        )

    def rest(self) -> bool:
        """There is nothing else to do: wait a moment for what is being read. False if nothing is."""
        if self._call is None:
            return False
        wait([self._loading], _WAIT_S)
        return True

    def _wait_for(self, call: UpdateWeights, count: int, *, paused: bool) -> None:
        """Hold new requests back for `count` others, or give up."""
        now_s = self._clock.now_s()
        if self._held_since_s is None:
            self._held_since_s = now_s
        self._admission.holds_new = True
        limit_s = call.drain_timeout_s
        if paused:
            self._refuse(self._end(), PAUSED.format(count=count), status=409, param="abort_all_requests")
        elif limit_s is not None and now_s - self._held_since_s >= limit_s:
            text = TOO_LONG.format(limit=limit_s, count=count)
            self._refuse(self._end(), text, status=409, param="drain_timeout_s")

    def _fail(self, call: UpdateWeights, fault: BaseException) -> None:
        if not isinstance(fault, UserError):
            log.error("The weights in %s cannot be loaded", call.model_path, exc_info=fault)
        text = str(fault) if isinstance(fault, UserError) else BROKEN
        self._refuse(self._end(), text, status=400, param="model_path")

    def _end(self) -> UpdateWeights:
        """The update is over, one way or the other."""
        assert self._call is not None
        call, self._call = self._call, None
        self._loading = Future()  # what was read takes memory
        self._held_since_s = None
        self._admission.holds_new = False
        return call

    def _refuse(self, call: UpdateWeights, message: str, *, status: int, param: str | None = None) -> None:
        self._emit(CallReply(call_id=call.call_id, ok=False, message=message, status=status, param=param))

    def _load(self, call: UpdateWeights, loading: Future[NewWeights]) -> None:
        try:
            loading.set_result(self._runner.load_weights(call.model_path))
        except BaseException as error:
            loading.set_exception(error)
