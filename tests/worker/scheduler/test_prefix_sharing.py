"""A prompt start that several waiting requests share is computed once, whoever sent them, and nobody starves for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import SchedulerBench, cache_with, make_request, make_settings
from tests.helpers.fake_runner import runner_info
from worker.cache.no_prefix import NoPrefixCache
from worker.cache.radix import RadixCache
from worker.sampling_params import LogprobsAsked
from worker.scheduler.limits import resolve_limits
from worker.scheduler.prefix_sharing import PrefixSharing

PROMPT = [number % 47 + 1 for number in range(500)]
MODES = list(itertools.product([False, True], [True, False]))  # overlap, mixed


def make_bench(runner: dict[str, Any] | None = None, **options: Any) -> SchedulerBench:
    page_size = (runner or {}).get("page_size", 1)
    sizes = {"context_len": 1000, "num_pages": 8000 // page_size, "max_rows": 32}
    return SchedulerBench({**sizes, **(runner or {})}, **{"chunked_prefill_size": -1, **options})


def prefilled(bench: SchedulerBench) -> int:
    return sum(len(batch.prefill_ids) for batch in bench.runner.batches)


def cached(bench: SchedulerBench, rid: str) -> int:
    last = bench.told[rid].last
    assert last is not None
    return last.cached_tokens


@pytest.mark.parametrize(("page_size", "chunk_tokens"), [(1, -1), (16, 128)])
@pytest.mark.parametrize(("overlaps", "mixed"), MODES)
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_eight_answers_to_one_prompt_compute_it_once(
    policy: str, overlaps: bool, mixed: bool, chunk_tokens: int, page_size: int
) -> None:
    bench = make_bench(
        {"overlaps": overlaps, "page_size": page_size},
        chunked_prefill_size=chunk_tokens,
        enable_mixed_chunk=mixed,
        schedule_policy=policy,
    )
    rids = [bench.submit(PROMPT, seed=seed, max_new_tokens=9) for seed in range(8)]
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in rids)
    own = 500 - 499 // page_size * page_size
    assert prefilled(bench) == 500 + 7 * own
    assert sorted(cached(bench, rid) for rid in rids) == [0] + 7 * [500 - own]


@pytest.mark.parametrize("overlaps", [False, True])
def test_different_clients_share_too_while_others_go_on(overlaps: bool) -> None:
    bench = make_bench({"overlaps": overlaps}, chunked_prefill_size=128)
    rids = [bench.submit(PROMPT[:300] + [number] * (20 + number), max_new_tokens=9) for number in range(6)]
    rids += [bench.submit([40 + number] * 60, max_new_tokens=9) for number in range(3)]
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in rids)
    assert prefilled(bench) == 300 + sum(20 + number for number in range(6)) + 3 * 60


def test_other_prompts_take_the_place_of_those_held_back() -> None:
    bench = make_bench()
    first, second = (bench.submit(PROMPT, seed=seed, max_new_tokens=30, ignore_eos=True) for seed in (1, 2))
    other = bench.submit([9] * 50, max_new_tokens=30, ignore_eos=True)
    bench.step()
    assert [len(bench.tokens(rid)) for rid in (first, second, other)] == [1, 0, 1]
    bench.step()
    assert [len(bench.tokens(rid)) for rid in (first, second, other)] == [2, 1, 2]


def test_two_groups_behind_one_cached_start_have_a_leader_each() -> None:
    bench = make_bench()
    bench.submit(PROMPT[:100], max_new_tokens=1)
    bench.run_until_idle()
    before = prefilled(bench)
    for tail in (5, 6):
        for seed in range(4):
            bench.submit(PROMPT[:100] + [tail] * 200, seed=seed, max_new_tokens=3)
    bench.run_until_idle()
    assert prefilled(bench) - before == 2 * (200 + 3)


@pytest.mark.parametrize(("shared", "computed"), [(31, 41 + 41), (32, 41 + 9), (33, 41 + 8)])
def test_fewer_than_32_shared_tokens_are_not_worth_waiting_for(shared: int, computed: int) -> None:
    bench = make_bench()
    for own in (7, 8):
        bench.submit(PROMPT[:shared] + [own] * (41 - shared), max_new_tokens=3)
    bench.run_until_idle()
    assert prefilled(bench) == computed


def test_on_a_gpu_a_step_is_worth_256_tokens() -> None:
    assert resolve_limits(make_settings(), replace(runner_info(page_size=1), device="cuda")).shared_tokens == 256
    assert resolve_limits(make_settings(), replace(runner_info(page_size=48), device="cuda")).shared_tokens == 288
    assert resolve_limits(make_settings(), runner_info(page_size=48)).shared_tokens == 48


def test_only_whole_pages_count() -> None:
    bench = make_bench({"page_size": 48})
    for own in (5, 6):
        bench.submit(PROMPT[:40] + [own] * 40, max_new_tokens=3)
    bench.step()
    assert bench.load().num_running_reqs == 2


@pytest.mark.parametrize(("key", "radix_off"), [("salt", False), (None, True)])
def test_what_the_cache_will_not_give_is_not_waited_for(key: str | None, radix_off: bool) -> None:
    """Another namespace; no prefix cache at all."""
    bench = make_bench(disable_radix_cache=radix_off)
    bench.submit(PROMPT, max_new_tokens=9)
    bench.submit(PROMPT, max_new_tokens=9, extra_key=key)
    bench.step()
    assert bench.load().num_running_reqs == 2
    bench.run_until_idle()
    assert prefilled(bench) == 1000


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("fate", ["abort", "launch fault", "result fault"])
def test_when_a_leader_fails_the_next_one_leads(overlaps: bool, fate: str) -> None:
    bench = make_bench({"overlaps": overlaps})
    rids = [bench.submit(PROMPT, seed=seed, max_new_tokens=5) for seed in range(3)]
    if fate != "abort":
        (bench.runner.launch_faults if fate == "launch fault" else bench.runner.result_faults).add(0)
    bench.step()
    if fate == "abort":
        bench.abort(rids[0])
    bench.run_until_idle()
    assert bench.finish(rids[0]).kind == "abort"
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in rids[1:])
    assert len(bench.runner.batches) < 20


def test_who_is_held_back_does_not_wait_for_room_it_will_not_need() -> None:
    """The pass ends at a request that does not fit, but the one held back fits as soon as its prompt is cached, long
    before anybody leaves."""
    bench = make_bench({"num_pages": 700, "max_rows": 4})
    bench.reserve_nothing()
    leader = bench.submit(PROMPT, seed=1, max_new_tokens=90, ignore_eos=True)
    held = bench.submit(PROMPT, seed=2, max_new_tokens=90, ignore_eos=True)
    bench.submit([9] * 600, max_new_tokens=1)
    bench.step(3)
    assert len(bench.tokens(leader)) == 3
    assert len(bench.tokens(held)) == 2


def test_prompt_scores_are_never_taken_from_the_cache() -> None:
    """A request that wants log-probabilities of its whole prompt computes it itself, at once."""
    sharing = PrefixSharing(RadixCache(1), 32)
    sharing.lead(make_request(PROMPT, "leader"), 500)
    scored = make_request(PROMPT, "scored", logprobs=LogprobsAsked(prompt_from=1))
    late = make_request(PROMPT, "late", logprobs=LogprobsAsked(prompt_from=400))
    plain = make_request(PROMPT, "plain", logprobs=LogprobsAsked())
    assert [sharing.holds(request) for request in (scored, late, plain)] == [False, True, True]


def test_a_prompt_half_computed_makes_its_like_wait_for_the_rest() -> None:
    cache = cache_with([1] * 80)
    like, unlike = make_request([1] * 190 + [5], "like"), make_request([1] * 90 + [2] * 100, "unlike")
    sharing = PrefixSharing(cache, 32)
    sharing.lead(make_request([1] * 200, "leader"), 160)
    assert [sharing.holds(request) for request in (like, unlike)] == [True, False]
    nearly = PrefixSharing(cache, 32)
    nearly.lead(make_request([1] * 200, "leader"), 111)
    assert not nearly.holds(like)


def test_a_pass_ends_after_512_that_wait_for_others() -> None:
    bench = make_bench()
    for _ in range(513):
        bench.submit(PROMPT[:40], max_new_tokens=0)
    other = bench.submit([9] * 50, max_new_tokens=0)
    bench.step()
    assert (bench.load().num_waiting_reqs, bench.load().num_running_reqs) == (513, 0)
    for rid in list(bench.told)[1:4]:
        bench.abort(rid)
    bench.run_until_idle()
    assert prefilled(bench) == 40 + 509 + 50
    assert bench.finish(other).kind == "length"


def test_without_a_cache_nobody_leads() -> None:
    sharing = PrefixSharing(NoPrefixCache(1), 32)
    sharing.lead(make_request(PROMPT, "leader"), 500)
    assert not sharing.holds(make_request(PROMPT, "like"))


prompts = st.builds(
    lambda lengths, own: [token for kind, count in enumerate(lengths) for token in [kind + 1] * count] + own,
    st.lists(st.sampled_from([0, 31, 32, 40, 64, 100]), max_size=4),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)


@settings(max_examples=20, deadline=None)
@given(
    bursts=st.lists(st.lists(prompts, min_size=1, max_size=8), min_size=1, max_size=4),
    overlaps=st.booleans(),
    page_size=st.sampled_from([1, 4, 16]),
)
def test_nobody_waits_longer_than_its_shared_start_takes(
    bursts: Sequence[Sequence[list[int]]], overlaps: bool, page_size: int
) -> None:
    """Where there is room for all, each hold adds 32 tokens at least to what is cached of a prompt, and lasts for one
    step, or two where steps overlap."""
    bench = make_bench({"overlaps": overlaps, "page_size": page_size})
    for burst in bursts:
        for prompt in burst:
            bench.submit(prompt, max_new_tokens=40, ignore_eos=True)
        longest = max(len(prompt) for prompt in burst)
        bench.step((1 + overlaps) * (longest // 32 + 1))
        assert bench.load().num_waiting_reqs == 0
    bench.run_until_idle()
    assert all(bench.tokens(rid) == bench.expected(rid) for rid in bench.told)
