"""Grammars for schedulers without xgrammar: an answer is a given list of tokens, compiled when the test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from worker.grammar.base import CompiledGrammar, GrammarFault, GrammarState, Words
from worker.sampling_params import GrammarAsked


def tokens_asked(tokens: list[int]) -> GrammarAsked:
    """Only these tokens, one after the other."""
    return GrammarAsked(kind="regex", text=json.dumps(tokens), param="regex")


@dataclass
class _State:
    tokens: list[int]
    num_words: int
    fill: Callable[[], Future[None]] | None
    at: int = 0
    pending: Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self.at == len(self.tokens)

    @property
    def allowed(self) -> Words:
        assert self.pending is None or self.pending.done(), "the mask is not filled yet"
        words = np.zeros(self.num_words, np.uint32)
        words[self.tokens[self.at] // 32] = 1 << self.tokens[self.at] % 32
        return words.view(np.int32)

    def accept(self, token: int) -> None:
        if token != self.tokens[self.at]:
            raise GrammarFault(f"The token {token} is not allowed.")
        assert self.pending is None or self.pending.done(), "the state is in use"
        self.at += 1
        if self.fill is not None and not self.ended:
            self.pending = self.fill()


@dataclass
class _Grammar:
    tokens: list[int]
    num_words: int
    fill: Callable[[], Future[None]] | None

    def start(self, held_back: tuple[int, ...], num_held_back: int) -> GrammarState:
        if not self.tokens:
            raise GrammarFault("No answer is possible.")
        return _State(self.tokens, self.num_words, self.fill)


@dataclass
class FakeGrammarCompiler:
    """`instant`: grammars are ready at once; otherwise `finish` makes them so. `fill` begins to fill a
    mask; None: masks are filled at once."""

    instant: bool = True
    num_words: int = 2  # of a mask over the vocabulary
    fill: Callable[[], Future[None]] | None = None
    asked: list[tuple[GrammarAsked, Future[CompiledGrammar]]] = field(default_factory=list)

    def compile(self, asked: GrammarAsked) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        self.asked.append((asked, future))
        if self.instant:
            self.finish()
        return future

    def finish(self) -> None:
        """All that was asked for is compiled now."""
        for asked, future in self.asked:
            if not future.done():
                try:
                    future.set_result(_Grammar(json.loads(asked.text), self.num_words, self.fill))
                except ValueError:
                    future.set_exception(GrammarFault("It is no list."))

    def close(self) -> None:
        pass
