"""xgrammar as the GrammarCompiler. It and the model's tokenizer are loaded when the first grammar is asked for, which
takes seconds, in the compiler's own thread."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from common.errors import UserError
from worker.engine.batch import RunnerInfo
from worker.grammar.base import CompiledGrammar, GrammarFault, GrammarState, Words
from worker.sampling_params import GrammarAsked

log = logging.getLogger(__name__)

CACHED_GRAMMARS = 256
MAX_WHITESPACE = 24  # characters in a row; some models would write nothing else
_THREADS = 2
_WORD_BITS = 32
SLOW_FILL_S = 0.002  # of CPU time; a mask that may take longer is filled beside the scheduler's loop
MAX_FILL_S = 1.0  # of CPU time
_PROBED_TOKENS = 16
_PROBED_S = 0.5  # of CPU time, for all of them
_NO_PACKAGE = "This server has no package xgrammar, which grammars need; install 'canopy-serve[structured]' there."
_CONDITION = re.compile(r"^Check failed: .* is false: ")
_STUCK = "The grammar allows no further token after {count} tokens of the answer."
_TOO_SLOW = "It is too slow to follow: finding its next tokens takes {spent:.1f} s, and {most:.0f} s is the most."
_FAILED = "It cannot be followed; the server's log says why."
_NO_BEGINNING = "The grammar allows no answer that this model's tokens could write."


class XGrammarCompiler:
    """Grammars over the tokens of one model."""

    def __init__(self, tokenizer_path: str, info: RunnerInfo, *, free_whitespace: bool) -> None:
        """`free_whitespace`: JSON may have any between its parts, as models like to write it; otherwise one space."""
        self._tokenizer_path = tokenizer_path
        self._whitespace: dict[str, int] = {"any_whitespace": free_whitespace}
        if free_whitespace:
            self._whitespace["max_whitespace_cnt"] = MAX_WHITESPACE
        self._info = info
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._mask_pool = ThreadPoolExecutor(_mask_threads(os.cpu_count() or 1), thread_name_prefix="mask")
        self._known: OrderedDict[tuple[str, str], Future[CompiledGrammar]] = OrderedDict()

    def compile(self, asked: GrammarAsked) -> Future[CompiledGrammar]:
        key = (asked.kind, asked.text)
        future = self._known.get(key)
        if future is None:
            future = self._known[key] = self._pool.submit(self._compile, asked)
            while len(self._known) > CACHED_GRAMMARS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._mask_pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, asked: GrammarAsked) -> CompiledGrammar:
        if find_spec("xgrammar") is None:
            raise GrammarFault(_NO_PACKAGE)
        with _failures_are_faults():
            compiler = self._xgrammar
            try:
                compiled = _compiled(compiler, asked, self._whitespace)
            except (RuntimeError, ValueError, TypeError) as error:  # xgrammar raises these for what it cannot read
                raise GrammarFault(f"It cannot be followed: {_first_sentence(error)}") from None
            num_words = -(-self._info.vocab_size // _WORD_BITS)
            grammar = _Grammar(compiled, num_words, self._info.eos_token_ids, self._mask_pool)
            grammar.probe()
            return grammar

    @cached_property
    def _xgrammar(self) -> Any:
        """Made in a thread of the pool, by whoever comes first; a second one made at the same time does no harm."""
        import xgrammar

        from common.model_tokenizer import ModelTokenizer

        try:
            tokenizer = ModelTokenizer.load(self._tokenizer_path).hugging_face
        except UserError as error:
            raise GrammarFault(str(error)) from None
        tokens = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=self._info.vocab_size, stop_token_ids=list(self._info.eos_token_ids)
        )
        return xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)


@contextmanager
def _failures_are_faults() -> Iterator[None]:
    """Whatever goes wrong with one client's grammar ends that client's request, not the scheduler."""
    try:
        yield
    except GrammarFault:
        raise
    except Exception:
        log.exception("A grammar failed")
        raise GrammarFault(_FAILED) from None


def _compiled(compiler: Any, asked: GrammarAsked, whitespace: Mapping[str, int]) -> Any:
    match asked.kind:
        case "json":
            return compiler.compile_json_schema('{"type": "object"}', strict_mode=False, **whitespace)
        case "json_schema":
            return compiler.compile_json_schema(asked.text, **whitespace)
        case "regex":
            return compiler.compile_regex(asked.text)
        case "ebnf":
            return compiler.compile_grammar(asked.text)
        case "structural_tag":
            return compiler.compile_structural_tag(_structural_tag(json.loads(asked.text)))


def _structural_tag(tag: dict[str, Any]) -> Any:
    """xgrammar's form of a tag; SGLang's older one, with structures and triggers, is changed into it."""
    if "structures" not in tag:
        return tag
    tags = [
        {
            "type": "tag",
            "begin": each["begin"],
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": each["end"],
        }
        for each in tag["structures"]
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}}


def _first_sentence(error: Exception) -> str:
    """xgrammar's text without the place in its source and the condition that stands there."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    _, _, told = text.partition(": ") if text.startswith("[") else ("", "", text)
    told = _CONDITION.sub("", told)
    return f"{told[:300].rstrip('. ')}."


@dataclass(slots=True)
class _Grammar:
    """A compiled grammar, and how its masks are filled. `slow`: one of them took so long that the scheduler's loop must
    not wait for them any more. `first`: the mask of an answer's first token."""

    compiled: Any
    num_words: int
    eos_token_ids: tuple[int, ...]
    pool: ThreadPoolExecutor
    slow: bool = False
    first: Words = field(init=False)

    def __post_init__(self) -> None:
        self.first = np.zeros((1, self.num_words), np.int32)
        self.fill(self._matcher(), torch.from_numpy(self.first))
        if not self.first.any():
            raise GrammarFault(_NO_BEGINNING)

    def start(self, held_back: Sequence[int], num_held_back: int) -> GrammarState:
        with _failures_are_faults():
            return _State(self, self._matcher(), _words_of(held_back, self.num_words), num_held_back)

    def fill(self, matcher: Any, tensor: torch.Tensor) -> float:
        """Write the mask of the next token. Returns seconds of CPU time, which do not count what else the machine
        does."""
        start_s = time.thread_time()
        matcher.fill_next_token_bitmask(tensor, 0)
        spent_s = time.thread_time() - start_s
        self.slow = self.slow or spent_s > SLOW_FILL_S
        return spent_s

    def probe(self) -> None:
        """Find out how long masks take, along the beginning of a random answer. Raises GrammarFault if one takes
        longer than any client would wait."""
        matcher, words, chooser, spent_s = self._matcher(), self.first.copy(), random.Random(0), 0.0
        tensor = torch.from_numpy(words)
        for _ in range(_PROBED_TOKENS):
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            if not len(allowed) or not matcher.accept_token(int(chooser.choice(allowed))) or matcher.is_terminated():
                return
            fill_s = self.fill(matcher, tensor)
            if fill_s > MAX_FILL_S:
                raise GrammarFault(_TOO_SLOW.format(spent=fill_s, most=MAX_FILL_S))
            spent_s += fill_s
            if spent_s > _PROBED_S:
                return

    def _matcher(self) -> Any:
        import xgrammar

        return xgrammar.GrammarMatcher(self.compiled, terminate_without_stop_token=not self.eos_token_ids)


class _State:
    def __init__(self, grammar: _Grammar, matcher: Any, held_back: Words, num_held_back: int) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._held_back = held_back
        self._num_held_back = num_held_back
        self._count = 0
        self._pending: Future[None] | None = None
        self._words = grammar.first.copy()
        self._tensor = torch.from_numpy(self._words)
        self._hold_back()

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_terminated())

    @property
    def pending(self) -> Future[None] | None:
        return self._pending

    @property
    def allowed(self) -> Words:
        words: Words = self._words[0]
        return words

    def accept(self, token: int) -> None:
        self._count += 1
        with _failures_are_faults():
            if not self._matcher.accept_token(token):
                raise GrammarFault(f"The token {token} is not allowed at token {self._count} of the answer.")
        self._pending = None
        if self.ended:
            return
        if self._grammar.slow:
            self._pending = self._grammar.pool.submit(self._fill)
        else:
            self._fill()

    def _fill(self) -> None:
        with _failures_are_faults():
            self._grammar.fill(self._matcher, self._tensor)
        if not self._words.any():
            raise GrammarFault(_STUCK.format(count=self._count))
        self._hold_back()

    def _hold_back(self) -> None:
        if self._count < self._num_held_back:
            others = self._words & ~self._held_back
            if others.any():
                self._words[:] = others


def _mask_threads(num_cpus: int) -> int:
    """Half of the processors, or most of them would do nothing else."""
    return min(max(num_cpus // 2, 1), 8)


def _words_of(ids: Sequence[int], num_words: int) -> Words:
    """The mask with the bits of these ids."""
    words = np.zeros(num_words, np.uint32)
    for id_ in ids:
        words[id_ // _WORD_BITS] |= np.uint32(1 << id_ % _WORD_BITS)
    signed: Words = words.view(np.int32)
    return signed
