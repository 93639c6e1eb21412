"""From token ids to what a client sees: detokenising, stop strings, and why the answer ended. Server and offline engine
share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.ipc.messages import FinishReason
from worker.sampling_params import SamplingParams
from worker.server.detokenizer import Detokenizer, TokenTable
from worker.server.stop_patterns import StopPattern
from worker.server.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class Piece:
    """What some tokens turned into. `num_tokens` of them count; the rest lay behind a stop string."""

    text: str
    num_tokens: int
    finish: FinishReason | None = None


class Pipeline(Protocol):
    """One sequence's way from tokens to what its client gets."""

    @property
    def makes_text(self) -> bool:
        """False: clients get token ids only."""
        ...

    def push(self, token_ids: Sequence[int], finish: FinishReason | None) -> Piece:
        """Take the next tokens, and the end if the scheduler saw it."""
        ...


class IdPipeline:
    """Token ids stay token ids: what --skip-tokenizer-init serves."""

    makes_text = False

    def push(self, token_ids: Sequence[int], finish: FinishReason | None) -> Piece:
        return Piece("", len(token_ids), finish)


class TextPipeline:
    """Tokens become text, which stop strings may end."""

    makes_text = True

    def __init__(self, table: TokenTable, sampling: SamplingParams) -> None:
        self._detokenizer = Detokenizer(table)
        self._matcher = None
        if sampling.stop or sampling.stop_regex:
            patterns = [StopPattern(pattern) for pattern in sampling.stop_regex]
            self._matcher = StopMatcher(sampling.stop, patterns, trim=not sampling.no_stop_trim)
        self._min_new_tokens = sampling.min_new_tokens
        self._keep_stop_token = sampling.no_stop_trim
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int], finish: FinishReason | None) -> Piece:
        """Take the next tokens, and the end if the scheduler saw it. A stop string found wins over that end."""
        visible = token_ids
        if finish is not None and finish.kind == "stop" and finish.matched is not None and not self._keep_stop_token:
            visible = token_ids[:-1]  # the stop token itself
        if self._matcher is None:
            return Piece(self._detokenizer.push(visible), len(token_ids), finish)
        text = ""
        for index, token_id in enumerate(visible):
            self._num_tokens += 1
            may_stop = self._num_tokens >= self._min_new_tokens
            matched = self._matcher.push(self._detokenizer.push((token_id,)), may_stop=may_stop)
            text += matched.text
            if matched.stop is not None:
                return Piece(text, index + 1, FinishReason(kind="stop", matched=matched.stop))
        if finish is not None:
            text += self._matcher.flush()
        return Piece(text, len(token_ids), finish)
