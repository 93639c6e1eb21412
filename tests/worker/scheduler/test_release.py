"""The one way out of the pool: what stays cached after a finish, a stop string, an abort; double work is dropped."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.builders import SchedulerBench


def cached_tokens(bench: SchedulerBench, tokens: list[int], namespace: str | None = None) -> int:
    return bench.scheduler._pool.cache.lookup(np.array(tokens, np.int32).tobytes(), namespace).tokens


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_finished_request_leaves_prompt_and_outputs_cached(page_size: int, overlaps: bool) -> None:
    bench = SchedulerBench({"page_size": page_size, "overlaps": overlaps})
    rid = bench.submit([5, 6, 7], max_new_tokens=9, ignore_eos=True)
    bench.run_until_idle()
    whole = [5, 6, 7, *bench.tokens(rid)]
    computed = 11  # the last token's KV is never computed
    assert cached_tokens(bench, whole) == computed // page_size * page_size


def test_the_next_turn_of_a_chat_finds_it() -> None:
    bench = SchedulerBench()
    first = bench.submit([5, 6, 7], max_new_tokens=9, ignore_eos=True)
    bench.run_until_idle()
    second = bench.submit([5, 6, 7, *bench.tokens(first), 8, 9], max_new_tokens=2, ignore_eos=True)
    bench.run_until_idle()
    last = bench.told[second].last
    assert last is not None and last.cached_tokens == 11
    assert bench.load().cache_hit_rate == pytest.approx(11 / 17)


def test_a_stop_string_keeps_only_what_was_said() -> None:
    bench = SchedulerBench()
    rid = bench.submit([5, 6, 7], max_new_tokens=30, ignore_eos=True)
    bench.step(8)
    bench.stop_matched(rid, 2)
    bench.run_until_idle()
    assert bench.tokens(rid) == bench.expected(rid)[:8]
    assert cached_tokens(bench, [5, 6, 7, *bench.tokens(rid)]) == 5
    assert bench.load().finished_requests_total == 1


def test_an_aborted_request_leaves_only_its_prompt() -> None:
    bench = SchedulerBench()
    rid = bench.submit([5, 6, 7], max_new_tokens=30, ignore_eos=True)
    bench.step(8)
    bench.abort(rid)
    bench.run_until_idle()
    assert bench.finish(rid).kind == "abort"
    assert cached_tokens(bench, [5, 6, 7, *bench.tokens(rid)]) == 3


def test_prompts_are_shared_while_their_requests_still_run() -> None:
    bench = SchedulerBench()
    first = bench.submit([5, 6, 7, 8], max_new_tokens=30, ignore_eos=True)
    bench.step(2)
    second = bench.submit([5, 6, 7, 9], max_new_tokens=30, ignore_eos=True)
    bench.step(2)
    last = bench.told[second].last
    assert last is not None and last.cached_tokens == 3
    bench.run_until_idle()
    assert bench.tokens(first) == bench.expected(first) and bench.tokens(second) == bench.expected(second)


@pytest.mark.parametrize("overlaps", [False, True])
def test_equal_prompts_computed_together_end_up_on_the_same_pages(overlaps: bool) -> None:
    bench = SchedulerBench({"overlaps": overlaps, "page_size": 4})
    prompt = list(range(1, 18))
    for seed in (1, 2, 3):
        bench.submit(prompt, max_new_tokens=20, ignore_eos=True, seed=seed)
    bench.step(3)
    table = bench.scheduler._table
    heads = {tuple(table.pages_of(row)[:4].tolist()) for row in table.used_rows().tolist()}
    assert len(heads) == 1
    assert bench.load().num_used_tokens == 16 + 3 * 4
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in bench.told)


def test_extra_keys_do_not_share() -> None:
    bench = SchedulerBench()
    bench.submit([5, 6, 7], extra_key="a", max_new_tokens=2)
    bench.run_until_idle()
    other = bench.submit([5, 6, 7], extra_key="b", max_new_tokens=2)
    bench.run_until_idle()
    last = bench.told[other].last
    assert last is not None and last.cached_tokens == 0
    assert cached_tokens(bench, [5, 6, 7], "b") == 3


def test_without_radix_cache_everything_is_free_again() -> None:
    bench = SchedulerBench(disable_radix_cache=True, schedule_policy="lpm")
    rids = [bench.submit([5, 6, 7], max_new_tokens=4) for _ in range(3)]
    bench.run_until_idle()
    load = bench.load()
    assert load.num_free_tokens == load.max_total_num_tokens
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in rids)
