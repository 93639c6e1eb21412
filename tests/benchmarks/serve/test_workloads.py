"""Prompts, lengths and sessions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serve import workloads
from benchmarks.serve.outcomes import Outcome
from benchmarks.serve.prompts import answered, as_ids, extended, head, size
from benchmarks.serve.workloads import Conversations, Material, Session
from benchmarks.traces import Trace, TraceRequest

VOCABULARY = (10, 500)


def material(seed: int = 7) -> Material:
    return Material(np.random.default_rng(seed), VOCABULARY, as_ids)


def ids_of(session: Session) -> list[int]:
    prompt = session.turns[0].prompt
    assert isinstance(prompt, np.ndarray)
    return [int(token) for token in prompt]


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(1, 200), st.integers(1, 50), st.floats(0, 1))
def test_lengths_stay_within_their_range(count: int, inputs: int, outputs: int, ratio: float) -> None:
    sessions = workloads.independent(material(), count, inputs, outputs, ratio)
    assert len(sessions) == count
    for session in sessions:
        assert max(1, int(inputs * ratio)) <= len(ids_of(session)) <= inputs
        assert max(1, int(outputs * ratio)) <= (session.turns[0].output_tokens or 0) <= outputs
        assert all(10 <= token < 500 for token in ids_of(session))


def test_members_of_a_group_share_their_prefix_and_nothing_more() -> None:
    sessions = workloads.shared_prefixes(material(), [4, 4, 1], 50, 20, 9)
    prompts = [tuple(ids_of(session)) for session in sessions]
    found = [sum(prompt[:50] == prefix for prompt in prompts) for prefix in {prompt[:50] for prompt in prompts}]
    assert sorted(found) == [1, 4, 4]
    assert len({prompt[50:] for prompt in prompts}) == 9
    assert {
        (len(prompt), session.turns[0].output_tokens) for prompt, session in zip(prompts, sessions, strict=True)
    } == {(70, 9)}


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 20), st.booleans())
def test_groups_have_all_the_questions(groups: int, members: int, zipf: bool) -> None:
    sizes = workloads.group_sizes(np.random.default_rng(1), groups, members, zipf=zipf)
    assert len(sizes) == groups and sum(sizes) == groups * members
    assert zipf or set(sizes) == {members}


def test_zipf_makes_the_first_groups_large() -> None:
    sizes = workloads.group_sizes(np.random.default_rng(1), 10, 1000, zipf=True)
    assert sizes[0] == pytest.approx(10_000 / 2.929, rel=0.05)
    assert sizes[0] > sizes[1] > sizes[9]


def test_conversations_have_the_shape_asked_for() -> None:
    shape = Conversations(
        sessions=200,
        turns=(2, 5),
        system_prompts=3,
        system_tokens=40,
        user_tokens=(5, 9),
        output_tokens=(1, 4),
        mean_pause_s=2.0,
    )
    sessions = workloads.conversations(material(), shape)
    assert {len(session.turns) for session in sessions} == {2, 3, 4, 5}
    assert len({tuple(ids_of(session)[:40]) for session in sessions}) == 3
    assert {len(ids_of(session)) for session in sessions} == set(range(45, 50))
    later = [turn for session in sessions for turn in session.turns[1:]]
    assert {size(turn.prompt) for turn in later} == set(range(5, 10))
    assert {turn.output_tokens for session in sessions for turn in session.turns} == {1, 2, 3, 4}
    assert all(session.turns[0].pause_s == 0 for session in sessions)
    assert np.mean([turn.pause_s for turn in later]) == pytest.approx(2.0, rel=0.15)


def test_a_seed_makes_the_same_prompts() -> None:
    one, again, other = (workloads.independent(material(seed), 3, 20, 5, 0.5) for seed in (1, 1, 2))
    assert list(map(ids_of, one)) == list(map(ids_of, again)) != list(map(ids_of, other))


def test_equal_blocks_of_a_trace_are_equal_tokens() -> None:
    requests = (TraceRequest(0.0, 1000, 5, (0, 1)), TraceRequest(0.5, 600, 1, (0, 2)), TraceRequest(2.0, 3, 1))
    first, second, third = workloads.recorded(material(), Trace("a", 0.0, requests))
    assert [len(ids_of(one)) for one in (first, second, third)] == [1000, 600, 3]
    assert ids_of(first)[:512] == ids_of(second)[:512]
    assert ids_of(first)[512:600] != ids_of(second)[512:600]
    assert [one.due_s for one in (first, second, third)] == [0.0, 0.5, 2.0]


def test_a_conversation_grows_by_answers_and_words_in_every_form() -> None:
    outcome = Outcome(text="yes", output_ids=[7, 8])
    ids = extended(answered(np.asarray([1, 2], np.int32), outcome), np.asarray([3], np.int32))
    assert isinstance(ids, np.ndarray) and ids.tolist() == [1, 2, 7, 8, 3]
    assert extended(answered("a", outcome), "b") == "ayesb"
    said = {"role": "user", "content": "a"}
    assert extended(answered([said], outcome), [said]) == [said, {"role": "assistant", "content": "yes"}, said]
    assert (size(ids), size("ab"), size([said])) == (5, 0, 0)
    assert head("abc", 2) == "ab" and head([said], 0) == [said]
