"""Stop checks and their priority; tokens that cannot be used; steps that fail."""

from __future__ import annotations

import pytest

from tests.helpers import fake_runner
from tests.helpers.builders import SchedulerBench


@pytest.fixture(params=[False, True], ids=["sync", "overlap"])
def bench(request: pytest.FixtureRequest) -> SchedulerBench:
    return SchedulerBench({"overlaps": request.param, "eos_token_ids": ()})


def outputs(bench: SchedulerBench, count: int) -> list[int]:
    """What [5, 6, 7] is answered with seed 3, before any stop rule."""
    rid = bench.submit([5, 6, 7], rid="probe", seed=3, max_new_tokens=count)
    bench.run_until_idle()
    return bench.tokens(rid)


def test_a_stop_token_ends_the_request_and_is_told(bench: SchedulerBench) -> None:
    stop = outputs(bench, 4)[3]
    rid = bench.submit([5, 6, 7], seed=3, max_new_tokens=20, stop_token_ids=(stop,))
    bench.run_until_idle()
    assert bench.tokens(rid) == bench.tokens("probe")[: bench.tokens("probe").index(stop) + 1]
    assert (bench.finish(rid).kind, bench.finish(rid).matched) == ("stop", stop)


def test_length_goes_before_a_stop_token(bench: SchedulerBench) -> None:
    stop = outputs(bench, 4)[3]
    assert stop not in bench.tokens("probe")[:3]
    rid = bench.submit([5, 6, 7], seed=3, max_new_tokens=4, stop_token_ids=(stop,))
    bench.run_until_idle()
    assert bench.finish(rid).kind == "length"


def test_min_new_tokens_holds_stop_tokens_back(bench: SchedulerBench) -> None:
    first = outputs(bench, 1)[0]
    rid = bench.submit([5, 6, 7], seed=3, max_new_tokens=8, min_new_tokens=3, stop_token_ids=(first,))
    bench.run_until_idle()
    assert first not in bench.tokens(rid)[:3]
    assert bench.tokens(rid) == bench.expected(rid)


def test_min_new_tokens_holds_even_if_the_runner_does_not_mask(
    bench: SchedulerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_runner, "next_token", lambda *args: 4)
    rid = bench.submit([5, 6, 7], max_new_tokens=8, min_new_tokens=3, stop_token_ids=(4,))
    bench.run_until_idle()
    assert bench.tokens(rid) == [4, 4, 4, 4]
    assert bench.finish(rid).kind == "stop"


@pytest.mark.parametrize("overlaps", [False, True])
def test_eos_ends_a_request_unless_it_asks_otherwise(overlaps: bool) -> None:
    probe = SchedulerBench({"eos_token_ids": ()})
    eos = outputs(probe, 3)[2]
    assert eos not in probe.tokens("probe")[:2]
    bench = SchedulerBench({"overlaps": overlaps, "eos_token_ids": (eos,)})
    stops = bench.submit([5, 6, 7], seed=3, max_new_tokens=6)
    ignores = bench.submit([5, 6, 7], seed=3, max_new_tokens=6, ignore_eos=True)
    bench.run_until_idle()
    assert (len(bench.tokens(stops)), bench.finish(stops).kind, bench.finish(stops).matched) == (3, "stop", eos)
    assert (len(bench.tokens(ignores)), bench.finish(ignores).kind) == (6, "length")


def test_a_token_outside_the_vocabulary_aborts_only_its_request(bench: SchedulerBench) -> None:
    bench.runner.broken_seeds = {9}
    broken = bench.submit([1, 2, 3], seed=9, max_new_tokens=5)
    fine = bench.submit([1, 2, 3], seed=8, max_new_tokens=5)
    bench.run_until_idle()
    reason = bench.finish(broken)
    assert (reason.kind, reason.status, bench.tokens(broken)) == ("abort", 500, [])
    assert reason.message.startswith("The model produced the token id -1, which is outside its vocabulary")
    assert bench.tokens(fine) == bench.expected(fine)


@pytest.mark.parametrize("kind", ["launch", "result"])
def test_a_failed_step_aborts_its_requests_and_no_others(
    bench: SchedulerBench, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults = bench.runner.launch_faults if kind == "launch" else bench.runner.result_faults
    faults.add(4)
    hit = [bench.submit([1, 2, n], max_new_tokens=20, ignore_eos=True) for n in (3, 4)]
    bench.step(6)
    later = bench.submit([1, 2, 3, 4], max_new_tokens=20, ignore_eos=True)
    bench.run_until_idle()
    for rid in hit:
        reason = bench.finish(rid)
        assert (reason.kind, reason.status) == ("abort", 503)
        assert reason.message == f"The step that computed this request failed: {kind} fault"
        assert bench.tokens(rid) == bench.expected(rid)[: len(bench.tokens(rid))]
    assert bench.tokens(later) == bench.expected(later)
    assert bench.load().aborted_requests_total == 2
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [f"A step failed. #decode: 2, #new-token: 0, #aborted-req: 2. {kind} fault try less"]


def test_a_failed_prefill_caches_nothing(bench: SchedulerBench) -> None:
    bench.runner.result_faults.add(0)
    bench.submit([1, 2, 3, 4, 5], max_new_tokens=5)
    bench.run_until_idle()
    assert bench.load().num_evictable_tokens == 0
    again = bench.submit([1, 2, 3, 4, 5], max_new_tokens=5)
    bench.run_until_idle()
    assert bench.tokens(again) == bench.expected(again)


def test_page_writes_of_a_failed_step_reach_the_runner_later() -> None:
    """Prefill-first: a decode whose pages were swapped for cached ones is not in the step that carried the writes."""
    bench = SchedulerBench({"page_size": 4}, enable_mixed_chunk=False)
    rids = [bench.submit(list(range(1, 10)), seed=seed, max_new_tokens=20, ignore_eos=True) for seed in (1, 2)]
    bench.step()  # both computed the same pages; the second got the first one's
    bench.runner.launch_faults.add(1)
    bench.submit([7] * 8, max_new_tokens=5)
    bench.step()
    # Whatever takes the swapped pages now would be read by the second request, had its writes been lost.
    thief = bench.submit([8] * 200, max_new_tokens=5, ignore_eos=True)
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in (*rids, thief))
