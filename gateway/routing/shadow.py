"""A second policy that is asked about every request and never obeyed, to see what it would have hit.

Both policies' choices are entered in a model of the workers' caches each, so that like is compared with like. The
shadow sees the loads that the acting policy made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, Policy, RouteRequest
from gateway.routing.prefix_knowledge import PrefixKnowledge


@dataclass(slots=True)
class ShadowTally:
    """Tokens by the models, since the start. Read by the metrics."""

    acting: str
    shadow: str
    prompt_tokens: float = 0.0
    acting_cached_tokens: float = 0.0
    shadow_cached_tokens: float = 0.0
    choices: int = 0
    agreements: int = 0  # both chose the same worker


class Shadow:
    """Acts as `acting`, and asks `other` too. Each has a model of the caches that its choices would have made."""

    def __init__(
        self,
        acting: Policy,
        other: Policy,
        acting_model: PrefixKnowledge,
        other_model: PrefixKnowledge,
        tally: ShadowTally,
        clock: Clock,
    ) -> None:
        self._acting = acting
        self.index = acting.index
        self._other = other
        self._acting_model = acting_model
        self._other_model = other_model
        self._tally = tally
        self._clock = clock

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        choice = self._acting.choose(request, snapshot, candidates)
        other = self._other.choose(request, snapshot, candidates)
        tally, model = self._tally, request.model or candidates[0].model
        tally.choices += 1
        tally.agreements += choice.worker.url == other.worker.url
        tally.prompt_tokens += request.prompt_tokens or request.prompt_bytes / 4
        tally.acting_cached_tokens += self._hit(self._acting_model, request, snapshot, model, choice.worker)
        tally.shadow_cached_tokens += self._hit(self._other_model, request, snapshot, model, other.worker)
        return msgspec.structs.replace(choice, shadow=other)

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        return self._acting.explain(request, snapshot, candidates)

    def started(self, choice: Choice, elapsed_s: float) -> None:
        self._acting.started(choice, elapsed_s)
        if (other := _same_worker(choice)) is not None:
            self._other.started(other, elapsed_s)

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> None:
        self._acting.served(choice, prompt_tokens, cached_tokens, completion_tokens)
        if (other := _same_worker(choice)) is not None:
            self._other.served(other, prompt_tokens, cached_tokens, completion_tokens)

    def failed(self, choice: Choice) -> None:
        self._acting.failed(choice)
        if (other := _same_worker(choice)) is not None:
            self._other.failed(other)

    def _hit(
        self, knowledge: PrefixKnowledge, request: RouteRequest, snapshot: Snapshot, model: str, worker: WorkerView
    ) -> float:
        """Tokens of the prompt that this worker would have had, had it got what the model's policy chose."""
        knowledge.follow(snapshot)
        prompt = knowledge.read(request, model)
        known = knowledge.index.matched(worker.life, prompt.hashes)
        knowledge.enter(worker.life, prompt, self._clock.now_s())
        return known * prompt.block_tokens


def _same_worker(choice: Choice) -> Choice | None:
    """The shadow's choice where the answer tells something about it: it chose the worker that answered."""
    other = choice.shadow
    return other if other is not None and other.worker.url == choice.worker.url else None
