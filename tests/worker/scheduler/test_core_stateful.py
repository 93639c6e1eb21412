"""Any mix of arrivals, priorities, policies, aborts, stop strings, retractions, failing steps and flushes: every
request ends exactly once with the tokens it would get alone, and no page is lost, freed twice or shared wrongly."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.builders import SchedulerBench
from worker.ipc.messages import AbortAll, CallReply, FinishReason, FlushCache

# Few distinct starts, so that prompts share; lengths around page, chunk and pool boundaries.
prompts = st.builds(
    lambda start, length, own: ([start] * length + own)[:50],
    st.integers(1, 2),
    st.integers(0, 40),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
)
scheduling = st.one_of(
    st.fixed_dictionaries({"schedule_policy": st.sampled_from(["fcfs", "lpm", "dfs-weight", "lof", "random"])}),
    st.fixed_dictionaries(
        {
            "schedule_policy": st.sampled_from(["fcfs", "lof", "priority"]),
            "enable_priority_scheduling": st.just(True),
            "schedule_low_priority_values_first": st.booleans(),
            "priority_scheduling_preemption_threshold": st.sampled_from([0, 10]),
            "disable_priority_preemption": st.booleans(),
            "retraction_policy": st.sampled_from(["length", "priority"]),
        }
    ),
)
configs = st.fixed_dictionaries(
    {
        "runner": st.fixed_dictionaries(
            {
                "overlaps": st.booleans(),
                "page_size": st.sampled_from([1, 4, 16]),
                "max_rows": st.sampled_from([2, 5, 12]),
                "vocab_size": st.sampled_from([10, 50]),
                "eos_token_ids": st.sampled_from([(), (0,)]),
            }
        ),
        "enable_mixed_chunk": st.booleans(),
        "chunked_prefill_size": st.sampled_from([-1, 16, 64]),
        "max_prefill_tokens": st.sampled_from([20, 16384]),
        "scheduling": scheduling,
        "prefill_max_requests": st.sampled_from([None, None, 1, 3]),
        "max_queued_requests": st.sampled_from([None, None, 2]),
        "radix_eviction_policy": st.sampled_from(["lru", "lfu", "slru", "priority"]),
        "disable_radix_cache": st.sampled_from([False, False, True]),
        "schedule_conservativeness": st.sampled_from([1.0, "auto"]),
    }
)


class AnyTraffic(RuleBasedStateMachine):
    """A scheduler, and the frontend that talks to it."""

    kind = SchedulerBench

    @initialize(config=configs, pool_tokens=st.sampled_from([64, 96, 320]))
    def start(self, config: dict[str, Any], pool_tokens: int) -> None:
        runner = {**config.pop("runner"), "num_pages": 0, "context_len": 100}
        config |= config.pop("scheduling")
        self.bounded = config["max_queued_requests"] is not None
        runner["num_pages"] = pool_tokens // runner["page_size"]
        self.bench = self.kind(runner, **config)
        self.stopped: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.may_fail = False

    @rule(
        batch=st.lists(st.tuples(prompts, st.sampled_from([None, 1, 2, 10, 20, 30])), min_size=1, max_size=6),
        min_new_tokens=st.sampled_from([0, 0, 4]),
        seed=st.integers(0, 3),
        extra_key=st.sampled_from([None, None, "salt"]),
        stop=st.sampled_from([(), (3,)]),
        priority=st.sampled_from([None, None, 0, 1, 11, 50]),
    )
    def submit(
        self,
        batch: list[tuple[list[int], int | None]],
        min_new_tokens: int,
        seed: int,
        extra_key: str | None,
        stop: tuple[int, ...],
        priority: int | None,
    ) -> None:
        for prompt, max_new_tokens in batch:
            self.bench.submit(
                prompt,
                extra_key=extra_key,
                priority=priority,
                max_new_tokens=max_new_tokens,
                min_new_tokens=min(min_new_tokens, max_new_tokens or min_new_tokens),
                seed=seed,
                stop_token_ids=stop,
            )
            self.bench.reserve_nothing()
            self.bench.step()

    @rule(count=st.integers(1, 20), hopeful=st.booleans())
    def step(self, count: int, hopeful: bool) -> None:
        """`hopeful`: as after many steps without a retraction, admission reserves nothing for running requests."""
        for _ in range(count):
            if hopeful:
                self.bench.reserve_nothing()
            self.bench.step()

    @property
    def live(self) -> list[str]:
        return [rid for rid, told in self.bench.told.items() if told.finish is None and not told.silenced]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(self.live))
        self.bench.abort(rid)
        self.aborted.add(rid)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def stop_string(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(self.live))
        if rid not in self.aborted:
            self.bench.stop_matched(rid, data.draw(st.integers(0, len(self.bench.tokens(rid)))))

    @rule(sure=st.sampled_from([False, False, False, True]))
    def abort_all(self, sure: bool) -> None:
        if not sure:
            return
        self.aborted.update(self.live)
        self.bench.scheduler.handle(AbortAll())

    @rule()
    def flush(self) -> None:
        idle = self.bench.scheduler.idle
        self.bench.scheduler.handle(FlushCache(call_id=0))
        reply = self.bench.messages[-1]
        assert isinstance(reply, CallReply) and reply.ok == idle

    @rule(steps_ahead=st.integers(0, 5), at_launch=st.booleans())
    def fault(self, steps_ahead: int, at_launch: bool) -> None:
        runner = self.bench.runner
        faults = runner.launch_faults if at_launch else runner.result_faults
        faults.add(len(runner.batches) + steps_ahead)
        self.may_fail = True

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        if hasattr(self, "bench"):
            self.bench.audit()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.run_until_idle(3000)
        self.bench.audit()
        load = self.bench.load()
        assert load.num_used_tokens == load.num_running_reqs == load.num_waiting_reqs == 0
        assert load.finished_requests_total + load.aborted_requests_total == len(self.bench.told)
        for rid, told in self.bench.told.items():
            expected = self.expected(rid)
            assert told.tokens == expected[: len(told.tokens)]
            assert told.silenced or told.finish is not None
            if told.finish is not None and told.finish.kind == "abort":
                assert rid in self.aborted or self.may_abort(told.finish)
            elif not told.silenced:
                assert told.tokens == expected

    def expected(self, rid: str) -> list[int]:
        """The tokens it would get alone."""
        return self.bench.expected(rid)

    def may_abort(self, finish: FinishReason) -> bool:
        """Whether a request that nobody aborted may have ended so."""
        return finish.status == 503 and (self.may_fail or self.bounded)


AnyTraffic.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyTraffic = AnyTraffic.TestCase
