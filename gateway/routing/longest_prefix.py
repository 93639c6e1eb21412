"""The longest prefix wins, whatever the load: for comparison, and where caches are all that matters.

A prefix that everybody shares then draws everybody to one worker; `cache_aware` does not have that fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest
from gateway.routing.prefix_knowledge import PrefixKnowledge
from gateway.routing.simple import queue_length
from gateway.routing.token_counts import Prompt


class LongestPrefix:
    """Among workers with equally long prefixes, the least busy."""

    def __init__(self, knowledge: PrefixKnowledge, clock: Clock) -> None:
        self._knowledge = knowledge
        self.index = knowledge.index
        self._clock = clock

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        knowledge, now_s = self._knowledge, self._clock.now_s()
        prompt = self._read(request, snapshot, candidates)
        best = max(self._matches(prompt, candidates, now_s), key=_worth)
        worker, known = best.worker, best.known_blocks
        touched_s = knowledge.index.touched_s(worker.life, prompt.hashes[known - 1]) if known else None
        knowledge.enter(worker.life, prompt, now_s)
        return knowledge.choice(
            request,
            prompt,
            worker,
            known,
            _reason(best, prompt),
            touched_s,
            now_s,
            exact_tokens=best.exact_tokens,
        )

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        prompt = self._read(request, snapshot, candidates)
        matches = sorted(self._matches(prompt, candidates, self._clock.now_s()), key=_worth, reverse=True)
        return [Offer(match.worker, _reason(match, prompt), match.tokens) for match in matches]

    def started(self, choice: Choice, elapsed_s: float) -> None:
        pass

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> None:
        self._knowledge.learn(choice, prompt_tokens, cached_tokens, completion_tokens, self._clock.now_s())

    def failed(self, choice: Choice) -> None:
        self._knowledge.forget(choice)

    def _read(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Prompt:
        self._knowledge.follow(snapshot)
        return self._knowledge.read(request, request.model or candidates[0].model)

    def _matches(self, prompt: Prompt, candidates: Sequence[WorkerView], now_s: float) -> list[_Match]:
        return [self._match(prompt, worker, now_s) for worker in candidates]

    def _match(self, prompt: Prompt, worker: WorkerView, now_s: float) -> _Match:
        knowledge = self._knowledge
        known = knowledge.index.matched(worker.life, prompt.hashes)
        exact_tokens = knowledge.exact_tokens(worker.life, prompt, now_s)
        tokens = knowledge.cached_tokens(prompt, worker, known) if exact_tokens is None else exact_tokens
        return _Match(tokens, known, exact_tokens, worker)


class _Match(NamedTuple):
    """What a worker has of a prompt: by its own word if there is one, else by our index."""

    tokens: int
    known_blocks: int
    exact_tokens: int | None
    worker: WorkerView


def _worth(match: _Match) -> tuple[int, int, int]:
    requests, sent_total = queue_length(match.worker)
    return match.tokens, -requests, -sent_total


def _reason(match: _Match, prompt: Prompt) -> str:
    return "prefix" if match.tokens else ("spread" if prompt.hashes else "load")
