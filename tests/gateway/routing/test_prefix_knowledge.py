"""What answers teach: true token counts, lengths of tokens, evictions; and what is kept apart."""

from __future__ import annotations

from array import array

import pytest

from common.kv_events import BlockStored
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity, WorkerView
from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.prompt_tokens import PromptTokens
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.prefix_knowledge import PrefixKnowledge
from gateway.routing.prices import Prices


class Worker:
    """One worker and what is known of it."""

    def __init__(self) -> None:
        registry = Registry()
        registry.add("http://a:80", source="test", identity=Identity(model="m"))
        registry.ready("http://a:80")
        self.view: WorkerView = registry.snapshot.workers[0]
        self.knowledge = PrefixKnowledge(2**22, Prices())
        self.knowledge.follow(registry.snapshot)
        self.now_s = 0.0

    def choose(self, text: str, model: str = "m") -> Choice:
        knowledge, raw = self.knowledge, text.encode()
        self.now_s += 10
        request = RouteRequest(model, raw, len(raw))
        prompt = knowledge.read(request, model)
        known = knowledge.index.matched(self.view.life, prompt.hashes)
        touched_s = knowledge.index.touched_s(self.view.life, prompt.hashes[known - 1]) if known else None
        knowledge.enter(self.view.life, prompt, self.now_s)
        return knowledge.choice(request, prompt, self.view, known, "test", touched_s, self.now_s)


def test_a_follow_up_finds_prompt_and_answer() -> None:
    """Neither 4 bytes a token nor whole blocks: the true count of the turn before is what is cached."""
    worker = Worker()
    first = worker.choose("u" * 1000)
    worker.knowledge.learn(first, prompt_tokens=240, cached_tokens=0, completion_tokens=31, now_s=0.0)
    assert worker.choose("u" * 1000 + "answer" * 20 + "v" * 400).cached_tokens == 240 + 30


def test_a_shared_start_is_learned_from_the_second_request_on() -> None:
    worker = Worker()
    system = "s" * 1100  # 4 blocks and a bit, 275 tokens by length; the worker says 300
    worker.knowledge.learn(worker.choose(system + "p" * 900), 520, 0, 10, now_s=0.0)
    second = worker.choose(system + "q" * 900)
    assert second.cached_tokens == pytest.approx(1024 * 520 / 2000, abs=2)
    worker.knowledge.learn(second, 520, 300, 10, now_s=0.0)
    assert worker.choose(system + "r" * 900).cached_tokens == 300


def test_an_evicted_prefix_is_no_token_count() -> None:
    worker = Worker()
    worker.knowledge.learn(worker.choose("s" * 8192), 2048, 0, 10, now_s=0.0)
    second = worker.choose("s" * 8192 + "q" * 900)
    worker.knowledge.learn(second, 2273, 0, 10, now_s=0.0)
    assert worker.choose("s" * 8192 + "r" * 900).cached_tokens == pytest.approx(2048, abs=20)


def test_a_worker_that_holds_more_than_we_know_teaches_nothing_false() -> None:
    """The index knew one block only; the worker had most of the prompt. That count belongs to no block we know."""
    worker = Worker()
    worker.choose("s" * 256 + "p" * 256)
    second = worker.choose("s" * 256 + "q" * 8000)
    assert second.known_blocks == 1
    worker.knowledge.learn(second, 2064, 1900, 10, now_s=0.0)
    assert worker.choose("s" * 256 + "r" * 8000).cached_tokens == 64


def test_models_are_kept_apart() -> None:
    worker = Worker()
    worker.choose("x" * 2048)
    assert worker.choose("x" * 2048, "m").known_blocks == 8
    assert worker.choose("x" * 2048, "other").known_blocks == 0


def test_text_per_worker_is_bounded() -> None:
    registry = Registry()
    for name, pool in (("a", 0), ("b", 500)):
        registry.add(f"http://{name}:80", source="test", identity=Identity(model="m", max_total_tokens=pool))
    knowledge = PrefixKnowledge(2**22, Prices(), max_blocks_per_worker=10)
    knowledge.follow(registry.snapshot)
    prompt = knowledge.read(RouteRequest("m", b"x" * 8192, 8192), "m")
    sizes = []
    for worker in registry.snapshot.workers:
        knowledge.enter(worker.life, prompt, 0.0)
        sizes.append(knowledge.index.size(worker.life))
    assert sizes == [10, 7]  # 7 blocks are 95 % of 500 tokens


def test_events_about_an_answer_may_be_late() -> None:
    """The worker has told of the prompt. Who goes on at once finds the answer too; later the worker's word counts."""
    worker, exact = Worker(), ExactIndex(1000)
    worker.knowledge = PrefixKnowledge(2**22, Prices(), exact=exact)
    exact.begin(worker.view.life, 16)
    ids = list(range(400))
    exact.apply(worker.view.life, [BlockStored(list(range(18)), None, ids[:288], 16)])
    first = b"user\x1f" + b"u" * 600 + b"\x1e"

    def choose(text: bytes, count: int, now_s: float) -> Choice:
        tokens = PromptTokens(array("i", ids[:count]).tobytes())
        prompt = worker.knowledge.read(RouteRequest("m", text, len(text), tokens=tokens), "m")
        known, life = worker.knowledge.index.matched(worker.view.life, prompt.hashes), worker.view.life
        exact_tokens = worker.knowledge.exact_tokens(life, prompt, now_s)
        if count == 300:
            worker.knowledge.enter(life, prompt, now_s)
        request = RouteRequest("m", text, len(text), tokens=tokens)
        return worker.knowledge.choice(
            request, prompt, worker.view, known, "test", None, now_s, exact_tokens=exact_tokens
        )

    worker.knowledge.learn(choose(first, 300, 1.0), 300, 288, 41, now_s=2.0)
    follow_up = first + b"assistant\x1f" + b"a" * 200 + b"\x1euser\x1fand?\x1e"
    assert choose(follow_up, 360, 2.01).cached_tokens == 340
    assert choose(follow_up, 360, 3.0).cached_tokens == 288
