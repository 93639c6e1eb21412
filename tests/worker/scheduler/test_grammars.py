"""Requests with a grammar in the scheduler: compiled beside the loop, masked step by step, right under overlap."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.helpers.builders import DRAWN_SEED, SchedulerBench
from tests.helpers.fake_grammar import FakeGrammarCompiler, tokens_asked
from tests.helpers.fake_runner import FakeRunner
from worker.engine.batch import ForwardBatch, StepFailed, StepResult
from worker.grammar.base import GrammarFault
from worker.ipc.messages import AbortAll, ContinueGeneration, FlushCache, PauseGeneration
from worker.sampling_params import GrammarAsked
from worker.scheduler.core import Scheduler

PROMPT = [5, 6, 7]
EOS = 0


class MaskingRunner(FakeRunner):
    """Samples the lowest token that a mask allows."""

    def _compute(self, batch: ForwardBatch) -> StepResult | StepFailed:
        outcome = super()._compute(batch)
        if isinstance(outcome, StepFailed) or batch.masks is None:
            return outcome
        for index, words in zip(batch.masks.indices.tolist(), batch.masks.allowed, strict=True):
            assert batch.samples[index]
            bits = "".join(format(word & 0xFFFFFFFF, "032b")[::-1] for word in words.tolist())
            token = bits.index("1")
            outcome.token_ids[index] = token
            self._next[int(batch.rows[index])] = token
        return outcome


class GrammarBench(SchedulerBench):
    """A scheduler that knows grammars."""

    def __init__(self, runner: dict[str, Any] | None = None, *, instant: bool = True, **settings: Any) -> None:
        super().__init__(runner, **settings)
        self.grammars = FakeGrammarCompiler(instant)
        self.runner = MaskingRunner(self.runner.info)
        seed = lambda: DRAWN_SEED  # noqa: E731
        self.scheduler = Scheduler(self.settings, self.runner, self.clock, self._emit, seed, self.grammars)


@pytest.mark.parametrize("overlaps", [False, True])
def test_each_token_is_masked_by_those_before_it(overlaps: bool) -> None:
    """Beside requests without a grammar, which get what they get alone."""
    bench = GrammarBench({"overlaps": overlaps}, chunked_prefill_size=2)
    wanted = [9, 40, 41, 1, 33, EOS]
    masked = bench.submit(PROMPT, grammar=tokens_asked(wanted))
    free = [bench.submit([i, 8, 9], max_new_tokens=20, ignore_eos=True) for i in range(3)]
    bench.run_until_idle()
    assert bench.tokens(masked) == wanted
    assert (bench.finish(masked).kind, bench.finish(masked).matched) == ("stop", EOS)
    assert [bench.tokens(rid) for rid in free] == [bench.expected(rid) for rid in free]


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_retracted_answer_goes_on_in_its_grammar(overlaps: bool) -> None:
    bench = GrammarBench({"num_pages": 40, "max_rows": 4, "overlaps": overlaps}, schedule_conservativeness=0.0)
    bench.reserve_nothing()
    answers = [[10 * i + j % 9 + 1 for j in range(29)] + [EOS] for i in range(4)]
    rids = []
    for answer in answers:
        rids.append(bench.submit(PROMPT, grammar=tokens_asked(answer), max_new_tokens=31))
        bench.step()  # admitted before the next one comes
    bench.run_until_idle()
    assert sum(bench.told[rid].last.num_retractions for rid in rids) > 0  # type: ignore[union-attr]
    assert [bench.tokens(rid) for rid in rids] == answers


def test_a_grammar_that_is_complete_ends_the_answer_without_eos() -> None:
    bench = GrammarBench()
    rid = bench.submit(PROMPT, grammar=tokens_asked([3, 4]), ignore_eos=True, min_new_tokens=9, max_new_tokens=9)
    bench.run_until_idle()
    assert (bench.tokens(rid), bench.finish(rid).kind, bench.finish(rid).matched) == ([3, 4], "stop", None)


def test_compiling_keeps_nobody_waiting() -> None:
    bench = GrammarBench(instant=False)
    masked = bench.submit(PROMPT, grammar=tokens_asked([3, EOS]))
    free = bench.submit(PROMPT, max_new_tokens=4)
    bench.step(6)
    assert bench.finish(free).kind == "length" and bench.tokens(masked) == []
    assert not bench.scheduler.idle
    assert bench.load().num_waiting_reqs == 1
    bench.grammars.finish()
    bench.run_until_idle()
    assert bench.tokens(masked) == [3, EOS]


def test_faults_of_a_grammar_are_the_clients() -> None:
    bench = GrammarBench()
    unreadable = bench.submit(PROMPT, grammar=GrammarAsked(kind="regex", text="[", param="my.field"))
    impossible = bench.submit(PROMPT, grammar=tokens_asked([]))
    bench.run_until_idle()
    for rid in (unreadable, impossible):
        reason = bench.finish(rid)
        assert (reason.kind, reason.status) == ("abort", 400)
    assert bench.finish(unreadable).param == "my.field"


def test_a_token_against_the_grammar_ends_that_request_only() -> None:
    """A runner that leaves masks out of account."""
    bench = GrammarBench()
    bench.runner.__class__ = FakeRunner
    masked = bench.submit(PROMPT, grammar=tokens_asked([3, EOS]))
    free = bench.submit([8, 9], max_new_tokens=4, ignore_eos=True)
    bench.run_until_idle()
    assert (bench.finish(masked).status, bench.finish(masked).param) == (400, "regex")
    assert bench.tokens(free) == bench.expected(free)


def test_requests_that_await_their_grammar_can_be_aborted() -> None:
    bench = GrammarBench(instant=False, max_queued_requests=2)
    first, second = (bench.submit(PROMPT, grammar=tokens_asked([3, EOS])) for _ in range(2))
    third = bench.submit(PROMPT, grammar=tokens_asked([3, EOS]))
    bench.step()
    assert bench.finish(third).status == 503
    bench.abort(first)
    bench.scheduler.handle(FlushCache(call_id=7))
    bench.scheduler.handle(AbortAll())
    bench.step()
    assert [bench.finish(rid).kind for rid in (first, second)] == ["abort", "abort"]
    assert bench.scheduler.idle


class Fills:
    """Masks that are filled when the test says so."""

    def __init__(self, bench: GrammarBench) -> None:
        self.futures: list[Future[None]] = []
        bench.grammars.fill = self.begin

    def begin(self) -> Future[None]:
        self.futures.append(Future())
        return self.futures[-1]

    def finish(self) -> None:
        self.futures[-1].set_result(None)


@pytest.mark.parametrize("overlaps", [False, True])
def test_nobody_waits_for_a_slow_mask(overlaps: bool) -> None:
    bench = GrammarBench({"overlaps": overlaps})
    fills = Fills(bench)
    masked = bench.submit(PROMPT, grammar=tokens_asked([9, 40, EOS]), max_new_tokens=5)
    free = bench.submit([8, 9], max_new_tokens=40, ignore_eos=True)
    for count in (1, 2):
        bench.step_until(lambda count=count: len(fills.futures) == count)  # type: ignore[misc]
        before = len(bench.tokens(free))
        bench.step(5)
        assert len(bench.tokens(free)) == before + 5
        assert len(bench.tokens(masked)) == count
        fills.finish()
    bench.run_until_idle()
    assert bench.tokens(masked) == [9, 40, EOS]
    assert bench.tokens(free) == bench.expected(free)


@pytest.mark.parametrize("overlaps", [False, True])
def test_slow_masks_while_requests_are_retracted(overlaps: bool) -> None:
    """Nobody is ended, or leaves, for room that a request holds which only waits for its mask."""
    bench = GrammarBench({"num_pages": 40, "max_rows": 4, "overlaps": overlaps}, schedule_conservativeness=0.0)
    bench.reserve_nothing()
    with ThreadPoolExecutor(2) as pool:
        bench.grammars.fill = lambda: pool.submit(time.sleep, 0.0003)
        answers = [[10 * i + j % 9 + 1 for j in range(29)] + [EOS] for i in range(4)]
        rids = []
        for answer in answers:
            rids.append(bench.submit(PROMPT, grammar=tokens_asked(answer), max_new_tokens=31))
            bench.step()
        bench.run_until_idle()
    assert sum(bench.told[rid].last.num_retractions for rid in rids) > 0  # type: ignore[union-attr]
    assert [bench.tokens(rid) for rid in rids] == answers


@pytest.mark.parametrize("way", ["abort", "pause", "fault"])
def test_who_waits_for_a_mask_can_be_ended(way: str) -> None:
    bench = GrammarBench({"overlaps": True})
    fills = Fills(bench)
    masked = bench.submit(PROMPT, grammar=tokens_asked([9, 40, EOS]))
    bench.step_until(lambda: bool(fills.futures))
    assert bench.scheduler.step() and not bench.scheduler.idle  # it waits a moment, and is not idle
    if way == "abort":
        bench.abort(masked)
        assert bench.scheduler.idle
    elif way == "pause":
        fills.finish()
        bench.grammars.fill = None
        bench.scheduler.handle(PauseGeneration(call_id=1, retract=True))
        bench.step()
        assert bench.load().num_running_reqs == 0
        bench.scheduler.handle(ContinueGeneration(call_id=2))
        fills.begin().set_result(None)
        bench.step_until(lambda: len(fills.futures) == 3)
        fills.finish()
    else:
        fills.futures[-1].set_exception(GrammarFault("Nothing may follow."))
    bench.run_until_idle()
    reason = bench.finish(masked)
    if way == "pause":
        assert bench.tokens(masked) == [9, 40, EOS]
    elif way == "fault":
        assert (reason.status, reason.message, reason.param) == (400, "Nothing may follow.", "regex")
    else:
        assert (reason.kind, reason.status) == ("abort", 200)


def test_without_a_compiler_grammars_are_refused() -> None:
    bench = SchedulerBench()
    rid = bench.submit(PROMPT, grammar=tokens_asked([3, EOS]))
    bench.run_until_idle()
    assert (bench.finish(rid).status, bench.finish(rid).param) == (400, "regex")
