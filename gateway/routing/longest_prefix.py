"""The longest prefix wins, whatever the load: for comparison, and where caches are all that matters.

A prefix that everybody shares then draws everybody to one worker; `cache_aware` does not have that fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest
from gateway.routing.prefix_knowledge import PrefixKnowledge, Prompt
from gateway.routing.simple import queue_length


class LongestPrefix:
    """Among workers with equally long prefixes, the least busy."""

    def __init__(self, knowledge: PrefixKnowledge, clock: Clock) -> None:
        self._knowledge = knowledge
        self._clock = clock

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        knowledge, now_s = self._knowledge, self._clock.now_s()
        prompt = self._read(request, snapshot, candidates)
        known, worker = max(self._matches(prompt, candidates), key=_worth)
        touched_s = knowledge.index.touched_s(worker.life, prompt.hashes[known - 1]) if known else None
        knowledge.enter(worker.life, prompt, now_s)
        return knowledge.choice(request, prompt, worker, known, _reason(known, prompt), touched_s, now_s)

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        prompt = self._read(request, snapshot, candidates)
        matches = sorted(self._matches(prompt, candidates), key=_worth, reverse=True)
        return [
            Offer(worker, _reason(known, prompt), self._knowledge.cached_tokens(prompt, known))
            for known, worker in matches
        ]

    def started(self, choice: Choice, elapsed_s: float) -> None:
        pass

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> None:
        self._knowledge.learn(choice, prompt_tokens, cached_tokens, completion_tokens)

    def failed(self, choice: Choice) -> None:
        self._knowledge.forget(choice)

    def _read(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Prompt:
        self._knowledge.follow(snapshot)
        return self._knowledge.read(request, request.model or candidates[0].model)

    def _matches(self, prompt: Prompt, candidates: Sequence[WorkerView]) -> list[tuple[int, WorkerView]]:
        matched = self._knowledge.index.matched
        return [(matched(worker.life, prompt.hashes), worker) for worker in candidates]


def _worth(match: tuple[int, WorkerView]) -> tuple[int, int, int]:
    requests, sent_total = queue_length(match[1])
    return match[0], -requests, -sent_total


def _reason(known: int, prompt: Prompt) -> str:
    return "prefix" if known else ("spread" if prompt.hashes else "load")
