"""The thread that owns an offline engine's scheduler: it takes what callers hand in, steps, and tells them the news."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import msgspec

from common.clock import MonotonicClock
from worker.assembly import running_scheduler
from worker.config import WorkerSettings
from worker.ipc.messages import (
    AbortRequest,
    CallReply,
    FlushCache,
    FrontendMessage,
    SchedulerMessage,
    SchedulerReady,
    StepOutput,
    StopMatched,
    TokenDelta,
    UpdateWeights,
    WeightsUpdated,
)
from worker.scheduler.core import Scheduler
from worker.server.answers import Answer
from worker.server.served_weights import ServedWeights

Object = dict[str, object]


@dataclass(eq=False, slots=True)
class Call:
    """The sequences of one call. `tell` is called in the driver's thread: with (index, object) for news of a streamed
    answer, with None when all have ended, with an exception if the engine broke. `render`: a streamed answer as the
    client's object; None: the call waits for whole answers."""

    answers: Sequence[Answer]
    tell: Callable[[tuple[int, Object] | BaseException | None], None]
    render: Callable[[Answer], Object] | None = None
    open_answers: int = field(init=False)

    def __post_init__(self) -> None:
        self.open_answers = len(self.answers)


@dataclass(eq=False, slots=True)
class _Live:
    """`held`: tokens of an answer that can become text at its end; None for one that must be looked at as it comes."""

    answer: Answer
    call: Call
    held: list[int] | None


@dataclass(frozen=True, slots=True)
class _Errand:
    """What a caller hands in: `work` is done between two steps; `fail` tells the caller that it never will be."""

    work: Callable[[Scheduler], None]
    fail: Callable[[BaseException], None]


class Driver:
    """Starts its thread, which loads the model. Everything else of the engine's scheduler happens there."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Raises UserError."""
        self._settings = settings
        self.weights = ServedWeights(settings.model_path, settings.weight_version)
        self._clock = MonotonicClock()
        self._inbox: SimpleQueue[_Errand | None] = SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._matches: list[StopMatched] = []
        self._calls: dict[int, Future[CallReply | WeightsUpdated]] = {}
        self._ready: Future[SchedulerReady] = Future()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        try:
            self.ready = self._ready.result()
        except BaseException:
            self._thread.join()
            raise

    def start(self, call: Call) -> None:
        """Hand in sequences, whose ids must be new."""

        def work(scheduler: Scheduler) -> None:
            for answer in call.answers:
                sampling = answer.request.sampling
                whole = call.render is None and not (sampling.stop or sampling.stop_regex or sampling.logprobs)
                self._live[answer.request.rid] = _Live(answer, call, [] if whole else None)
                scheduler.handle(answer.request)

        self._post(_Errand(work, call.tell))

    def abort(self, call: Call) -> None:
        """End what still runs of a call; it is told as usual."""

        def work(scheduler: Scheduler) -> None:
            for answer in call.answers:
                if answer.request.rid in self._live:
                    scheduler.handle(AbortRequest(rid=answer.request.rid))

        if self._failure is None:
            self._inbox.put(_Errand(work, lambda error: None))

    def flush_cache(self) -> CallReply:
        """Empty the prefix cache; not ok while requests run or wait."""
        reply = self._ask(lambda call_id: FlushCache(call_id=call_id))
        assert isinstance(reply, CallReply)
        return reply

    def update_weights(self, asked: UpdateWeights) -> CallReply | WeightsUpdated:
        """Have the weights replaced; not ok if they stay as they were."""
        return self._ask(lambda call_id: msgspec.structs.replace(asked, call_id=call_id))

    def now_s(self) -> float:
        """The clock that answers are timed by."""
        return self._clock.now_s()

    def close(self) -> None:
        """Drop what runs, free the model, end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _ask(self, message: Callable[[int], FrontendMessage]) -> CallReply | WeightsUpdated:
        """Hand in a call, and wait for its answer."""
        reply: Future[CallReply | WeightsUpdated] = Future()

        def work(scheduler: Scheduler) -> None:
            call_id = id(reply)
            self._calls[call_id] = reply
            scheduler.handle(message(call_id))

        self._post(_Errand(work, reply.set_exception))
        return reply.result()

    def _post(self, errand: _Errand) -> None:
        self._inbox.put(errand)
        if self._failure is not None:
            self._fail_errands(self._failure)

    def _run(self) -> None:
        try:
            with running_scheduler(self._settings, self._receive) as scheduler:
                self._ready.set_result(scheduler.ready_message())
                self._loop(scheduler)
            self._failure = RuntimeError("The engine is shut down.")
        except BaseException as error:
            self._failure = error
            if not self._ready.done():
                self._ready.set_exception(error)
        self._end_all(self._failure)

    def _loop(self, scheduler: Scheduler) -> None:
        """Until `close`. Waits when there is nothing to do."""
        idle = True
        while True:
            while idle or not self._inbox.empty():
                errand = self._inbox.get()
                if errand is None:
                    return
                errand.work(scheduler)
                idle = False
            worked = scheduler.step()
            matches: Sequence[FrontendMessage]
            matches, self._matches = self._matches, []
            for match in matches:  # not inside the step, which is not re-entrant
                scheduler.handle(match)
            if not worked and not matches:
                scheduler.on_idle()
                idle = True

    def _receive(self, message: SchedulerMessage) -> None:
        """The scheduler's news, at the end of each step."""
        if isinstance(message, WeightsUpdated):
            self.weights.update(message)
        if isinstance(message, CallReply | WeightsUpdated):
            self._calls.pop(message.call_id).set_result(message)
        if not isinstance(message, StepOutput):
            return
        for rid, token in zip(message.rids, message.tokens, strict=True):
            live = self._live.get(rid)
            if live is not None and live.held is not None:
                live.held.append(token)
            elif live is not None:
                live.answer.take_token(token, self.now_s())
                self._tell(live, ended_by_scheduler=False)
        for delta in message.deltas:
            if (live := self._live.get(delta.rid)) is not None:
                self._take(live, delta)

    def _take(self, live: _Live, delta: TokenDelta) -> None:
        if live.held is not None:
            live.held += delta.token_ids
            if delta.finish is None:
                live.answer.prompt_scores += delta.prompt_scores
                return
            delta = msgspec.structs.replace(delta, token_ids=live.held)
        live.answer.take(delta, self.now_s())
        self._tell(live, ended_by_scheduler=delta.finish is not None)

    def _tell(self, live: _Live, *, ended_by_scheduler: bool) -> None:
        answer, call = live.answer, live.call
        if call.render is not None:
            call.tell((answer.index, call.render(answer)))
        if answer.finish is None:
            return
        del self._live[answer.request.rid]
        if not ended_by_scheduler:  # a stop string was found: the scheduler must hear of it
            self._matches.append(StopMatched(rid=answer.request.rid, num_output_tokens=len(answer.output_ids)))
        call.open_answers -= 1
        if not call.open_answers:
            call.tell(None)

    def _end_all(self, error: BaseException) -> None:
        for call in {id(live.call): live.call for live in self._live.values()}.values():
            call.tell(error)
        self._live.clear()
        for reply in self._calls.values():
            reply.set_exception(error)
        self._fail_errands(error)

    def _fail_errands(self, error: BaseException) -> None:
        """Tell those whose errands nobody will do any more. Any thread may, once `_failure` is set."""
        with suppress(Empty):
            while True:
                errand = self._inbox.get_nowait()
                if errand is not None:
                    errand.fail(error)
