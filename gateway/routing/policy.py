"""The seam between a request and a worker: what a policy is asked, and what it answers. Pure: no I/O, no asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView


class RouteRequest(msgspec.Struct, frozen=True, gc=False):
    """What routing needs to know about a request.

    `text`: the prompt as bytes in a fixed rendering, bounded; equal prefixes of prompts are equal prefixes of `text`.
    Empty: nothing to match. `prompt_bytes`: its whole length. `prompt_tokens`: exact if the client sent ids, else 0.
    `single`: one prompt, so that the usage an answer reports is this prompt's.
    """

    model: str | None = None
    text: bytes = b""
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    stream: bool = False
    single: bool = True


class Choice(msgspec.Struct, frozen=True):
    """A worker, why, and what the policy expects of it.

    `uncached_tokens`: prefill the worker will have to do. `wait_s`: expected time to the first token, 0 if the policy
    has no notion of it. `hashes`: the prompt's blocks, entered into an index for this request; the first `known_blocks`
    were there before, the last of them touched at `touched_s`. `text_bytes`: the prompt's length, if it is one text.
    `work_tokens`: prefill up to its first token, its own and what waits before it. `chosen_s`: when.
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

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


class Policy(Protocol):
    """How a worker is chosen."""

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        """Choose among `candidates`: never empty, all READY, all serving the request's model, all in `snapshot`."""
        ...

    def started(self, choice: Choice, elapsed_s: float) -> None:
        """The first token of a streamed answer came, so long after the choice."""
        ...

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int) -> None:
        """The answer told how many prompt tokens there truly were, and how many the worker had cached."""
        ...

    def failed(self, choice: Choice) -> None:
        """The worker did not take the request."""
        ...


class StatelessPolicy:
    """Base of policies that learn nothing from answers."""

    def started(self, choice: Choice, elapsed_s: float) -> None:
        pass

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int) -> None:
        pass

    def failed(self, choice: Choice) -> None:
        pass
