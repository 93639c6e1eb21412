"""Any traffic, with pauses and new weights at any moment: each answer is by one set of weights, whoever is aborted,
retracted or failing meanwhile, and every update is answered once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.worker.scheduler.test_core_stateful import AnyTraffic
from tests.worker.scheduler.test_weights import Swap
from worker.ipc.messages import (
    CallReply,
    ContinueGeneration,
    FinishReason,
    PauseGeneration,
    StepOutput,
    UpdateWeights,
    WeightsUpdated,
)
from worker.scheduler.core import ABORTED_FOR_WEIGHTS

_FIRST_UPDATE, _PAUSE = 1000, 1


class NewWeightsInAnyTraffic(AnyTraffic):
    """Updates are numbered by their call ids, and so are the weights."""

    kind = Swap
    updates = 0

    @rule(retract=st.booleans())
    def pause(self, retract: bool) -> None:
        self.bench.scheduler.handle(PauseGeneration(call_id=_PAUSE, retract=retract))

    @rule()
    def go_on(self) -> None:
        self.bench.scheduler.handle(ContinueGeneration(call_id=_PAUSE))

    @rule(
        good=st.sampled_from([True, True, True, False]),
        abort_all=st.sampled_from([False, False, True]),
        drain_timeout_s=st.sampled_from([None, None, 0.0, 3.0]),
        loads_at_once=st.booleans(),
    )
    def update(self, good: bool, abort_all: bool, drain_timeout_s: float | None, loads_at_once: bool) -> None:
        call_id = _FIRST_UPDATE + self.updates
        self.updates += 1
        if not loads_at_once:
            self.bench.runner.may_load.clear()
        path = str(call_id) if good else "no number"
        call = UpdateWeights(call_id=call_id, model_path=path, abort_all=abort_all, drain_timeout_s=drain_timeout_s)
        self.bench.scheduler.handle(call)

    @rule(seconds=st.sampled_from([0.0, 2.0, 4.0]))
    def weights_are_read(self, seconds: float) -> None:
        self.bench.runner.may_load.set()
        assert isinstance(self.bench, Swap)
        if self.bench.scheduler._weights._call is not None:
            self.bench.loaded()
        self.bench.step()
        self.bench.clock.advance(seconds)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.runner.may_load.set()
            self.go_on()
        super().teardown()
        if hasattr(self, "bench"):
            replies = [m for m in self.bench.messages if isinstance(m, CallReply | WeightsUpdated)]
            answered = Counter(reply.call_id for reply in replies if reply.call_id >= _FIRST_UPDATE)
            assert answered == Counter(range(_FIRST_UPDATE, _FIRST_UPDATE + self.updates))

    def expected(self, rid: str) -> list[int]:
        """By the weights that were in use when the first of its tokens was told; all others must be by them too."""
        in_use = 0
        for message in self.bench.messages:
            if isinstance(message, WeightsUpdated):
                in_use = int(message.model_path)
            elif isinstance(message, StepOutput) and rid in {*message.rids, *(d.rid for d in message.deltas)}:
                break
        return self.bench.expected(rid, in_use)

    def may_abort(self, finish: FinishReason) -> bool:
        return super().may_abort(finish) or (finish.status, finish.message) == (400, ABORTED_FOR_WEIGHTS)


NewWeightsInAnyTraffic.TestCase.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestNewWeightsInAnyTraffic = pytest.mark.long(NewWeightsInAnyTraffic.TestCase)
