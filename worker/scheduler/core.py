"""The scheduler of one replica: messages in, one step at a time, messages out. Builds and joins its parts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from common.clock import Clock
from worker.cache.hot_prefixes import hot_prefixes
from worker.cache.no_prefix import NoPrefixCache
from worker.cache.pool import KvPool
from worker.cache.prefix import PrefixCache
from worker.cache.radix import RadixCache
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, ModelRunner, PendingStep, RunnerInfo, StepFailed
from worker.engine.profiling import Profiler
from worker.grammar.base import GrammarCompiler, GrammarFault, GrammarState
from worker.ipc.messages import (
    AbortAll,
    AbortRequest,
    CallReply,
    ContinueGeneration,
    FlushCache,
    FrontendMessage,
    GenerateRequest,
    GetHotPrefixes,
    GetLoad,
    HotPrefix,
    HotPrefixes,
    LoadReport,
    PauseGeneration,
    SchedulerCall,
    SchedulerMessage,
    SchedulerReady,
    Shutdown,
    StartProfile,
    StopMatched,
    StopProfile,
    UpdateWeights,
)
from worker.kv_events.recorder import recorder_of
from worker.scheduler.grammars import GrammarQueue, SlowMasks
from worker.scheduler.limits import differences, resolve_limits
from worker.scheduler.outbox import Outbox
from worker.scheduler.planner import Plan, Planner
from worker.scheduler.policies.factory import make_policy
from worker.scheduler.preemption import Preemption
from worker.scheduler.prefill import PrefillScheduler
from worker.scheduler.priority import PriorityRules
from worker.scheduler.profiles import Profiles
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.release import Lifecycle
from worker.scheduler.reports import LoadReporter, ready_message
from worker.scheduler.request import Request
from worker.scheduler.reserve import make_reserve
from worker.scheduler.results import ResultHandler
from worker.scheduler.retraction import Retraction
from worker.scheduler.rows import RequestTable
from worker.scheduler.stats import SchedulerStats, log_startup
from worker.scheduler.steady import SteadyDecodes
from worker.scheduler.weights import HoldablePolicy, WeightUpdate

QUEUE_FULL = "The request queue is full."
DISPLACED = "The request queue is full, and a more urgent request took this one's place."
ABORTED = "The request was aborted."
ABORTED_FOR_WEIGHTS = "The request was aborted, because the model's weights were replaced."
NO_GRAMMARS = "This server does not follow grammars."


class _Launched(msgspec.Struct, frozen=True, eq=False):
    plan: Plan
    pending: PendingStep
    launched_s: float


class Scheduler:
    """Owns the runner. `draw_seed` gives the seed of a request that has none; `emit` sends to the frontend.

    With a runner that overlaps, step N+1 is launched before the results of step N are handled: pages and rows that N's
    results free are given out again in step N+2 at the earliest, which the runner computes after N+1.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        runner: ModelRunner,
        clock: Clock,
        emit: Callable[[SchedulerMessage], None],
        draw_seed: Callable[[], int],
        grammar_compiler: GrammarCompiler | None = None,
        profiler: Profiler | None = None,
    ) -> None:
        info = runner.info
        self._runner = runner
        self._profiles = Profiles(runner.launch, profiler)
        self._clock = clock
        self._emit = emit
        self._draw_seed = draw_seed
        self._max_queued_requests = settings.max_queued_requests
        self._overlap = info.overlaps and not settings.disable_overlap_schedule
        self._launched: _Launched | None = None
        self._num_arrivals = 0
        self._grammars = GrammarQueue(grammar_compiler)
        self.shut_down = False
        self._paused = False

        self._limits = limits = resolve_limits(settings, info)
        self._priorities = priorities = PriorityRules.of(settings)
        self._prefixes = cache = _make_cache(settings, info)
        self._recorder = recorder_of(settings, cache, info.num_pages, emit)
        self._pool = pool = KvPool(info.num_pages, self._recorder or cache)
        self._table = table = RequestTable(info.max_rows, limits.max_req_len, info.page_size)
        self._waiting = waiting = WaitingQueue(by_rank=priorities.scheduled)
        self._reserve = reserve = make_reserve(
            settings.schedule_conservativeness, pool, table, clock, limits.max_req_len
        )
        self._stats = stats = SchedulerStats(clock, settings.decode_log_interval)
        self._loads = LoadReporter(limits, pool, table, waiting, self._grammars, reserve, stats)
        self._outbox = Outbox(emit, clock)
        self._lifecycle = lifecycle = Lifecycle(pool, table, waiting, self._outbox, stats, reserve)
        policy = HoldablePolicy(make_policy(settings.schedule_policy, pool.cache, draw_seed))
        threshold = priorities.preemption_threshold
        preemption = None if threshold is None else Preemption(pool, table, lifecycle, reserve, stats, threshold)
        prefill = PrefillScheduler(limits, pool, table, waiting, policy, preemption, reserve, stats, clock)
        self._weights = WeightUpdate(runner, emit, clock, pool, table, waiting, policy)
        by_priority = settings.retraction_policy == "priority"
        retraction = Retraction(pool, table, lifecycle, reserve, stats, by_priority=by_priority)
        self._planner = Planner(pool, table, prefill, retraction, reserve, mixed=settings.enable_mixed_chunk)
        self._steady = SteadyDecodes(pool, table, prefill, self._planner, reserve.decay, stats)
        self._masks = SlowMasks(table)
        self._results = ResultHandler(info, pool, table, waiting, lifecycle, self._outbox, stats, self._masks)
        log_startup(limits, info, differences(settings, limits))

    def handle(self, message: FrontendMessage) -> None:
        """Take a message, between two steps."""
        match message:
            case GenerateRequest():
                self._generate(message)
            case AbortRequest(rid=rid):
                self._abort(rid)
            case StopMatched():
                self._stop(message)
            case AbortAll():
                self._abort_all(200, ABORTED)
            case UpdateWeights():
                self._weights.begin(message)
            case StartProfile() | StopProfile():
                self._emit(self._profiles.answer(message))
            case Shutdown():
                self._profiles.abandon()
                self.shut_down = True
            case _:
                self._emit(self._answer(message))

    def step(self) -> bool:
        """Launch a step, handle a step's results, send the news. False when there was nothing to launch or handle."""
        self._take_compiled()
        if self._weights.due(paused=self._paused):
            self._take_weights()
        if self._paused:
            self._settle()
            self._send_news()
            return self._weights.rest()
        released = self._table.num_released
        self._take_masks()
        if self._launched is not None and self._planner.must_settle():
            self._settle()
        if len(self._masks) and self._planner.may_retract():  # nobody leaves for room that others hold meanwhile
            self._settle()
            self._take_masks(wait_all=True)
        plan = self._planner.plan()
        launched = self._launch(plan) if plan is not None else None
        worked = plan is not None or self._launched is not None or self._table.num_released != released
        if self._overlap:
            self._settle()
            self._launched = launched
        else:
            self._launched = launched
            self._settle()
        self._send_news()
        return worked or self._masks.rest() or self._grammars.rest() or self._weights.rest()

    def _take_masks(self, *, wait_all: bool = False) -> None:
        for request, fault in self._masks.take_failed(wait_all=wait_all):
            self._lifecycle.abort(request, 400, str(fault), request.sampling.grammar_param)

    def steady_steps(self) -> int:
        """How many of the next calls of `step` would only decode the same requests, so that `skip` may replace them."""
        if self._launched is None or not self._overlap or self._paused or self._recorder or len(self._grammars):
            return 0
        return self._steady.most(self._launched.plan)

    def skip(self, steps: int, token_id: int, launch: Callable[[ForwardBatch], PendingStep]) -> None:
        """As so many calls of `step`, at most `steady_steps`, each row sampling `token_id` in each. `launch` starts all
        of these steps at once; it is given the last one's batch, with the page writes of all."""
        assert self._launched is not None
        plan = self._steady.take(self._launched.plan, steps, token_id)
        self._launched = _Launched(plan, launch(plan.batch), self._clock.now_s())

    def _send_news(self) -> None:
        if self._recorder is not None:
            self._recorder.flush()
        self._outbox.flush()

    def on_idle(self) -> None:
        """Nothing is left to do, or all is paused: check that nothing leaked, and forget what past load has taught."""
        self._outbox.flush()
        if self._paused and not self.idle:
            return
        assert self.idle, f"{self._lifecycle.num_live} live requests, but nothing to compute"
        self.check_pool()
        self._reserve.reset()
        self._stats.on_idle()

    @property
    def idle(self) -> bool:
        """No request is live and no step in flight."""
        return self._launched is None and not self._lifecycle.num_live and not len(self._grammars)

    def check_pool(self) -> None:
        """Raise AssertionError unless free + cached + used pages are the whole pool, and none is used when idle."""
        self._pool.check(self._table.own_pages, idle=self.idle)

    def ready_message(self) -> SchedulerReady:
        """What the frontend must know before it takes requests."""
        return ready_message(self._runner.info, self._limits)

    def load_report(self, call_id: int) -> LoadReport:
        """State and counters now."""
        return self._loads.report(call_id)

    def _generate(self, message: GenerateRequest) -> None:
        prompt_len = message.prompt_len
        refusal = self._limits.refusal(prompt_len)
        if refusal is not None:
            self._refuse(message, 400, refusal)
            return
        rank = self._priorities.rank(message.priority)
        if self._queue_full and not self._displace(rank):
            self._refuse(message, 503, QUEUE_FULL)
            return
        if message.sampling.grammar is None:
            self._enqueue(message, None)
        elif self._grammars.available:
            self._grammars.add(message)
            self._take_compiled()
        else:
            self._refuse(message, 400, NO_GRAMMARS, message.sampling.grammar_param)

    def _take_compiled(self) -> None:
        """Requests whose grammar is ready wait like others from now on."""
        if not len(self._grammars):
            return
        for each in self._grammars.take_ready():
            sampling = each.message.sampling
            held_back = (*self._runner.info.eos_token_ids, *sampling.stop_token_ids)
            try:
                grammar = each.future.result().start(held_back, sampling.min_new_tokens)
            except GrammarFault as fault:
                self._refuse(each.message, 400, str(fault), sampling.grammar_param)
            else:
                self._enqueue(each.message, grammar)

    def _enqueue(self, message: GenerateRequest, grammar: GrammarState | None) -> None:
        sampling, prompt_len = message.sampling, message.prompt_len
        self._num_arrivals += 1
        self._lifecycle.enqueue(
            Request(
                rid=message.rid,
                prompt_key=message.prompt_key,
                prompt_len=prompt_len,
                sampling=sampling,
                seed=self._draw_seed() if sampling.seed is None else sampling.seed,
                namespace=message.extra_key,
                max_new_tokens=self._limits.max_new_tokens(sampling.max_new_tokens, prompt_len),
                arrival_s=self._clock.now_s(),
                rank=self._priorities.rank(message.priority),
                arrival_index=self._num_arrivals,
                grammar=grammar,
                traced=message.traced,
            )
        )

    @property
    def _queue_full(self) -> bool:
        limit = self._max_queued_requests
        return limit is not None and len(self._waiting) + len(self._grammars) >= limit

    def _displace(self, rank: int) -> bool:
        """Drop the least urgent, newest waiting request in favour of one of `rank`, if that is more urgent. Who has
        begun to run stays."""
        last = self._waiting.last
        if not self._priorities.scheduled or last is None or last.admitted or last.rank <= rank:
            return False
        self._lifecycle.abort(last, 503, DISPLACED)
        return True

    def _refuse(self, message: GenerateRequest, status: int, text: str, param: str | None = None) -> None:
        self._stats.aborted_requests += 1
        self._outbox.refuse(message.rid, message.prompt_len, status, text, param)

    def _stop(self, matched: StopMatched) -> None:
        if (request := self._lifecycle.find(matched.rid)) is not None:
            self._lifecycle.finish(request, matched.num_output_tokens)

    def _abort_all(self, status: int, text: str) -> None:
        for message in self._grammars.take_all():
            self._refuse(message, status, text)
        for request in self._lifecycle.all_live():
            self._lifecycle.abort(request, status, text)

    def _take_weights(self) -> None:
        """Those who were told of the old weights are told so before their owner hears of the new ones."""
        self._settle()
        if self._weights.aborts:
            self._abort_all(400, ABORTED_FOR_WEIGHTS)
        updated = self._weights.take()
        self._send_news()
        self._emit(updated)

    def _abort(self, rid: str) -> None:
        if (request := self._lifecycle.find(rid)) is not None:
            self._lifecycle.abort(request, 200, ABORTED)
        elif (message := self._grammars.remove(rid)) is not None:
            self._refuse(message, 200, ABORTED)

    def _hot_prefixes(self, max_tokens: int) -> list[HotPrefix]:
        if not isinstance(self._prefixes, RadixCache):
            return []
        return [HotPrefix(tokens=tokens, hits=hits) for tokens, hits in hot_prefixes(self._prefixes, max_tokens)]

    def _answer(self, call: SchedulerCall) -> SchedulerMessage:
        match call:
            case PauseGeneration():
                self._pause(retract=call.retract)
                return CallReply(call_id=call.call_id, ok=True)
            case ContinueGeneration():
                self._paused = False
                return CallReply(call_id=call.call_id, ok=True)
            case FlushCache():
                return self._flush_cache(call.call_id)
            case GetLoad():
                return self.load_report(call.call_id)
            case GetHotPrefixes():
                return HotPrefixes(call_id=call.call_id, prefixes=self._hot_prefixes(call.max_tokens))

    def _pause(self, *, retract: bool) -> None:
        """What is in flight still counts. Who is retracted keeps its outputs, and its place before others."""
        self._paused = True
        if retract:
            self._settle()
            self._take_masks(wait_all=True)
            table = self._table
            rows = table.used_rows()
            for request in table.requests(rows[np.argsort(-table.arrival[rows])]):
                self._lifecycle.retract(request)

    def _flush_cache(self, call_id: int) -> CallReply:
        if not self.idle:
            message = "The prefix cache cannot be flushed while requests are running or waiting."
            return CallReply(call_id=call_id, ok=False, message=message)
        self._pool.flush()
        return CallReply(call_id=call_id, ok=True)

    def _launch(self, plan: Plan) -> _Launched | None:
        launched_s = self._clock.now_s()
        try:
            return _Launched(plan, self._profiles.launch(plan.batch), launched_s)
        except StepFailed as fault:
            self._results.fail(plan, fault)
            return None

    def _settle(self) -> None:
        """Handle the results of the step in flight, if any."""
        launched, self._launched = self._launched, None
        if launched is None:
            return
        try:
            result = launched.pending.result()
        except StepFailed as fault:
            self._results.fail(launched.plan, fault)
            return
        self._stats.on_step(launched.plan.batch, result, launched.launched_s)
        self._results.handle(launched.plan, result)


def _make_cache(settings: WorkerSettings, info: RunnerInfo) -> PrefixCache:
    if settings.disable_radix_cache or not info.reuses_prefixes:
        return NoPrefixCache(info.page_size)
    return RadixCache(info.page_size, settings.radix_eviction_policy)
