"""Predicted cached tokens: exact for whoever goes on with a chat, by page, by kind of prompt, and bounded in memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.extract import extract
from gateway.routing.policy import Choice
from gateway.routing.prefix_knowledge import PrefixKnowledge
from gateway.routing.prices import Prices
from gateway.routing.token_counts import Recent, Turn

TEMPLATE_TOKENS = 30  # in front of every chat

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def true_tokens(messages: list[Message]) -> int:
    """Neither 4 bytes a token nor a constant number of them: each message has 5 more, and the template has some."""
    return TEMPLATE_TOKENS + sum(5 + len(message["content"]) // 3 for message in messages)


class Workers:
    """So many, and what is known of them."""

    def __init__(self, count: int = 1, page_size: int = 0) -> None:
        registry = Registry()
        for number in range(count):
            url = f"http://w{number}:80"
            registry.add(url, source="test", identity=Identity(model="m", page_size=page_size))
            registry.ready(url)
        self.views = registry.snapshot.workers
        self.knowledge = PrefixKnowledge(2**22, Prices())
        self.knowledge.follow(registry.snapshot)

    def choose(self, messages: list[Message], worker: int = 0, **fields: Any) -> Choice:
        view, knowledge = self.views[worker], self.knowledge
        request = extract(orjson.dumps({"messages": messages, **fields}))
        prompt = knowledge.read(request, "m")
        known = knowledge.index.matched(view.life, prompt.hashes)
        knowledge.enter(view.life, prompt, 0.0)
        return knowledge.choice(request, prompt, view, known, "test", None, 0.0)

    def serve(self, messages: list[Message], cached: int, answer: int, worker: int = 0, **fields: Any) -> Choice:
        choice = self.choose(messages, worker, **fields)
        self.knowledge.learn(choice, true_tokens(messages), cached, answer, 0.0)
        return choice


SIZES = st.lists(st.tuples(st.integers(1, 700), st.integers(1, 300)), min_size=2, max_size=5)


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_every_turn_of_every_chat_is_foretold_to_the_token(chats: list[list[tuple[int, int]]]) -> None:
    """Short and long turns, several chats with the same beginning, answers longer and shorter than a block."""
    workers, talks = Workers(), [[user("s" * 600)] for _ in chats]
    held = [0] * len(chats)
    for turn in range(max(map(len, chats))):
        for number, sizes in enumerate(chats):
            if turn == len(sizes):
                held[number] = 0
            if turn >= len(sizes):
                continue
            asked, answered = sizes[turn]
            talk = talks[number]
            talk.append(user(f"{number}" + "q" * asked))
            answer = "a" * answered
            tokens = len(answer) // 3 + 1
            choice = workers.serve(talk, held[number], tokens)
            if turn:
                assert choice.cached_tokens == held[number] and choice.follows_turn
            held[number] = true_tokens(talk) + tokens - 1
            talk.append(assistant(answer))


def test_another_worker_has_only_what_all_share() -> None:
    workers = Workers(2)
    shared, tokens = "s" * 1000, true_tokens([user("s" * 1000)])
    for text in ("a", "b", "c"):
        workers.serve([user(shared + text * 20)], 0 if text == "a" else tokens, 9)
        workers.serve([user(shared + text * 20)], 0 if text == "a" else tokens, 9, worker=1)
    talk = [user(shared + "b" * 20), assistant("x" * 30), user("more")]
    assert workers.choose(talk).cached_tokens == true_tokens(talk[:1]) + 8
    # In the other's index there is the prompt too; its turn is its own.
    elsewhere = workers.choose([user(shared + "d" * 20), assistant("x" * 30), user("more")], worker=1)
    assert elsewhere.cached_tokens == tokens and not elsewhere.follows_turn


def test_a_prompt_that_is_sent_again_lacks_its_last_token() -> None:
    workers = Workers()
    talk = [user("u" * 500)]
    workers.serve(talk, 0, 40)
    again = workers.choose(talk)
    assert (again.cached_tokens, again.prompt_tokens) == (true_tokens(talk) - 1, true_tokens(talk))


def test_whole_pages_are_cached() -> None:
    workers = Workers(page_size=16)
    talk = [user("u" * 500)]
    workers.serve(talk, 0, 40)
    whole = true_tokens(talk) + 39
    assert workers.choose([*talk, assistant("x" * 120), user("v" * 50)]).cached_tokens == whole - whole % 16


def test_reasoning_that_is_not_sent_back_is_not_matched() -> None:
    """The answer had 900 tokens, of which the client keeps the few that are not reasoning."""
    workers = Workers()
    talk = [user("u" * 600)]
    workers.serve(talk, 0, 900)
    follow_up = workers.choose([*talk, assistant("x" * 60), user("v" * 50)])
    assert follow_up.cached_tokens == true_tokens(talk)


@pytest.mark.parametrize("fields", [{}, {"cache_salt": "tenant"}])
def test_work_left_is_told_by_what_is_new(fields: dict[str, str]) -> None:
    """The estimate of the whole prompt's length does not blur it."""
    workers = Workers()
    talk = [user("u" * 3000)]
    workers.serve(talk, 0, 20, **fields)
    follow_up = workers.choose([*talk, assistant("x" * 60), user("v" * 300)], **fields)
    assert follow_up.uncached_tokens == pytest.approx(5 + 100 + 6, abs=10)


def test_a_template_s_beginning_is_cached_for_all_of_a_kind() -> None:
    workers = Workers(2)
    assert workers.serve([user("a" * 400)], 0, 9).cached_tokens == 0
    assert workers.serve([user("b" * 400)], TEMPLATE_TOKENS, 9).cached_tokens == 0  # learned from this one
    assert workers.choose([user("c" * 400)]).cached_tokens == TEMPLATE_TOKENS
    assert workers.choose([user("c" * 400)], worker=1).cached_tokens == 0  # it has had none yet
    assert workers.choose([user("d" * 400)], cache_salt="tenant").cached_tokens == 0
    assert workers.choose([{"role": "system", "content": "d" * 400}]).cached_tokens == 0


def test_short_chats_are_foretold_though_they_have_no_block() -> None:
    workers = Workers()
    talk = [user("hello")]
    workers.serve(talk, 0, 6)
    assert workers.choose([*talk, assistant("hello you"), user("bye")]).cached_tokens == true_tokens(talk) + 5


def test_each_model_has_its_own_length_of_tokens() -> None:
    workers = Workers()
    workers.serve([user("u" * 3000)], 0, 9)
    counts = workers.knowledge._counts
    assert counts.bytes_per_token("m") == pytest.approx(2.9, abs=0.1)
    assert counts.bytes_per_token("other") == Prices().bytes_per_token


def test_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        recent, before = Recent[Turn](10_000), tracemalloc.get_traced_memory()[0]
        for number in range(25_000):
            recent.put(2**63 + number * 7919, (1000 + number, 500 + number, 0.5 + number))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(recent) == 10_000 and used <= 10_000 * 320
