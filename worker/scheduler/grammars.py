"""Requests with a grammar: those whose grammar is being compiled, and the masks of those that run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass

import numpy as np

from worker.engine.batch import Bools, TokenMasks
from worker.grammar.base import CompiledGrammar, GrammarCompiler
from worker.ipc.messages import GenerateRequest
from worker.scheduler.rows import Int64s, RequestTable

_WAIT_S = 0.005


@dataclass(frozen=True, slots=True)
class AwaitingGrammar:
    """A request that waits for its grammar."""

    message: GenerateRequest
    future: Future[CompiledGrammar]


class GrammarQueue:
    """Requests on their way to the waiting queue. The scheduler's loop never compiles, nor waits while it has other
    work."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._waiting: dict[str, AwaitingGrammar] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def available(self) -> bool:
        """Whether grammars can be followed here."""
        return self._compiler is not None

    def add(self, message: GenerateRequest) -> None:
        """Have a request's grammar compiled."""
        asked = message.sampling.grammar
        assert asked is not None and self._compiler is not None
        self._waiting[message.rid] = AwaitingGrammar(message, self._compiler.compile(asked))

    def remove(self, rid: str) -> GenerateRequest | None:
        """Take a request out, if it is here."""
        found = self._waiting.pop(rid, None)
        return None if found is None else found.message

    def take_all(self) -> list[GenerateRequest]:
        """Take all out."""
        messages = [each.message for each in self._waiting.values()]
        self._waiting.clear()
        return messages

    def take_ready(self) -> Iterator[AwaitingGrammar]:
        """Take out those whose grammar is compiled, or has turned out to be none; in order of arrival."""
        for rid in [rid for rid, each in self._waiting.items() if each.future.done()]:
            yield self._waiting.pop(rid)

    def rest(self) -> bool:
        """There is nothing else to do: wait a moment for a grammar. False if none is awaited."""
        if not self._waiting:
            return False
        wait([each.future for each in self._waiting.values()], _WAIT_S, "FIRST_COMPLETED")
        return True


def token_masks(table: RequestTable, rows: Int64s, samples: Bools) -> TokenMasks | None:
    """What the grammars allow as the next tokens of a step; None if no request in it has one. All earlier tokens of
    those requests must be known."""
    if not table.num_constrained:
        return None
    constrained = table.constrained[rows] & samples
    if not constrained.any():
        return None
    indices = np.flatnonzero(constrained).astype(np.int32)
    states = [request.grammar for request in table.requests(rows[indices])]
    return TokenMasks(indices, np.stack([state.allowed for state in states if state is not None]))
