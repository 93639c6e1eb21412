"""Requests with a grammar: those whose grammar is being compiled, those whose next mask is, and the masks of a step."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass

import numpy as np

from worker.engine.batch import Bools, TokenMasks
from worker.grammar.base import CompiledGrammar, GrammarCompiler, GrammarFault
from worker.ipc.messages import GenerateRequest
from worker.scheduler.request import NO_ROW, Request
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


class SlowMasks:
    """Running requests whose next mask is filled in another thread. They leave out steps until it is there, so that
    nobody waits for them."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._pending: list[tuple[Request, Future[None]]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request: Request, pending: Future[None]) -> None:
        """A request got a token, and its next mask is not known yet."""
        self._table.awaits_mask[request.row] = True
        self._pending.append((request, pending))

    def take_failed(self, *, wait_all: bool = False) -> Iterator[tuple[Request, GrammarFault]]:
        """Requests whose mask is there take part again; those whose grammar allows no token are given back. Who has
        ended is forgotten. `wait_all`: nobody is left pending."""
        pending, self._pending = self._pending, []
        for request, future in pending:
            if request.row == NO_ROW:
                continue
            if not wait_all and not future.done():
                self._pending.append((request, future))
                continue
            try:
                future.result()
                self._table.awaits_mask[request.row] = False
            except GrammarFault as fault:
                yield request, fault

    def rest(self) -> bool:
        """There is nothing else to do: wait a moment for a mask. False if none is awaited."""
        if not self._pending:
            return False
        wait([future for _, future in self._pending], _WAIT_S, "FIRST_COMPLETED")
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
