"""The seam between a request and a worker: what a policy is asked, and what it answers. Pure: no I/O, no asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.kv_events.prompt_tokens import PromptTokens

if TYPE_CHECKING:
    from gateway.routing.prefix_index import PrefixIndex


class RouteRequest(msgspec.Struct, frozen=True, gc=False):
    """What routing needs to know about a request.

    `text`: the prompt as bytes in a fixed rendering, bounded; equal prefixes of prompts are equal prefixes of `text`.
    Empty: nothing to match. `prompt_bytes`: its whole length. `prompt_tokens`: exact if the client sent ids, else 0.
    `single`: one prompt, so that the usage an answer reports is this prompt's. `media`: it has parts that are not text,
    so its length says little about its tokens. `key`: what the client said belongs together. `target`: the one worker
    it wants, by name, URL or position; empty: any. `tokens`: its token ids, in exact mode; UNKNOWN if there is no
    telling them.
    """

    model: str | None = None
    text: bytes = b""
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    stream: bool = False
    single: bool = True
    media: bool = False
    key: bytes = b""
    target: str = ""
    tokens: PromptTokens | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A worker, why, and what the policy expects of it.

    `cached_tokens`: of the prompt, expected in the worker's cache. `wait_s`: expected time to the first token, 0 if the
    policy has no notion of it. `hashes`: the prompt's blocks, entered into an index for this request; the first
    `known_blocks` were there before, the last of them touched at `touched_s`. `text_bytes`: the prompt's length, if it
    is one text. `work_tokens`: prefill up to its first token, its own and what waits before it. `chosen_s`: when.
    `tokens`: the request's, where they are known. `start_key`, `end_key`: under which token counts of its beginning and
    its end are kept, 0 for none; `follows_turn`: it goes on from a turn that the worker has answered.
    """

    worker: WorkerView
    reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    wait_s: float = 0.0
    hashes: tuple[int, ...] = ()
    known_blocks: int = 0
    work_tokens: float = 0.0
    text_bytes: int = 0
    touched_s: float | None = None
    chosen_s: float = 0.0
    shadow: Choice | None = None
    tokens: PromptTokens | None = None
    start_key: int = 0
    end_key: int = 0
    follows_turn: bool = False

    @property
    def uncached_tokens(self) -> int:
        """Prefill the worker will have to do."""
        return self.prompt_tokens - self.cached_tokens


class Offer(msgspec.Struct, frozen=True):
    """One candidate in an explanation. `price_s` and its `parts`: seconds, None and empty without a notion of it."""

    worker: WorkerView
    reason: str
    cached_tokens: int = 0
    price_s: float | None = None
    parts: dict[str, float] = {}


class Policy(Protocol):
    """How a worker is chosen. In all methods `candidates` are never empty, all READY, all serving the request's model,
    all in `snapshot`."""

    @property
    def index(self) -> PrefixIndex | None:
        """What it remembers of prompts, if it does."""
        ...

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        """Choose a candidate."""
        ...

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        """All candidates, best first: the first is whom `choose` would take now. Changes nothing."""
        ...

    def started(self, choice: Choice, elapsed_s: float) -> None:
        """The first token of a streamed answer came, so long after the choice."""
        ...

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> None:
        """The answer told how many prompt tokens there truly were, how many of them the worker had cached, and how
        many tokens it wrote."""
        ...

    def failed(self, choice: Choice) -> None:
        """The worker did not take the request."""
        ...


class StatelessPolicy:
    """Base of policies that learn nothing from answers."""

    index: PrefixIndex | None = None

    def started(self, choice: Choice, elapsed_s: float) -> None:
        pass

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> None:
        pass

    def failed(self, choice: Choice) -> None:
        pass


def chosen_first(chosen: WorkerView, candidates: Sequence[WorkerView], reason: str) -> list[Offer]:
    """An explanation by a policy that orders nobody but its choice: the others follow as they come."""
    others = [Offer(worker, "not chosen") for worker in candidates if worker is not chosen]
    return [Offer(chosen, reason), *others]
