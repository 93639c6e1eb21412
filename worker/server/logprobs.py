"""Log-probabilities as OpenAI's and SGLang's answers show them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.ipc.messages import TokenScore

LEAST_LOGPROB = -9999.0  # JSON has no minus infinity

TokenBytes = Callable[[int], bytes]


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token in its place; `score` is None for a prompt's first token, which nothing precedes."""

    id: int
    score: TokenScore | None


def scored_prompt(input_ids: Sequence[int], scores: Sequence[TokenScore]) -> list[ScoredToken]:
    """The prompt's tokens from the one before the first that is scored."""
    start = len(input_ids) - len(scores) - 1
    return [ScoredToken(id_, score) for id_, score in zip(input_ids[start:], (None, *scores), strict=True)]


def scored_tokens(token_ids: Iterable[int], scores: Iterable[TokenScore]) -> list[ScoredToken]:
    """Tokens of an answer with their scores."""
    return [ScoredToken(id_, score) for id_, score in zip(token_ids, scores, strict=True)]


def chat_logprobs(tokens: Sequence[ScoredToken], bytes_of: TokenBytes) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat choice: one entry for each token."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = bytes_of(token_id)
        return {"token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": finite(logprob)}

    return {
        "content": [
            entry(token.id, token.score.logprob) | {"top_logprobs": [entry(*best) for best in token.score.top]}
            for token in tokens
            if token.score is not None
        ],
        "refusal": None,
    }


class CompletionLogprobs:
    """OpenAI's `logprobs` of one completion choice, piece by piece: offsets count characters from its start, where
    `shown` says what a token adds."""

    def __init__(self, bytes_of: TokenBytes, shown: TokenBytes) -> None:
        self._bytes_of = bytes_of
        self._shown = shown
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._offset = 0

    def of(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """The next tokens. The best ones include the token itself, as OpenAI's do."""
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [None if token.score is None else finite(token.score.logprob) for token in tokens],
            "top_logprobs": [self._best(token) for token in tokens],
            "text_offset": [self._next_offset(token.id) for token in tokens],
        }

    def _best(self, token: ScoredToken) -> dict[str, float] | None:
        if token.score is None or not token.score.top:
            return None
        best = {self._name(id_): finite(logprob) for id_, logprob in token.score.top}
        return best | {self._name(token.id): finite(token.score.logprob)}

    def _next_offset(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._decode(self._shown(token_id)))
        return offset

    def _name(self, token_id: int) -> str:
        """The token's text; a part of a character is written as OpenAI does, so that two of them differ."""
        raw = self._bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


@dataclass(frozen=True, slots=True)
class NativeLogprobs:
    """SGLang's lists in meta_info: triples of log-probability, token id, and text or null. `bytes_of` None: no texts.
    `top` and `listed`: whether the best and the listed ids were asked for."""

    bytes_of: TokenBytes | None
    top: bool
    listed: tuple[int, ...]

    def fields(self, kind: str, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """The lists of the prompt (kind "input") or of the answer (kind "output")."""
        scores = [token.score for token in tokens]
        fields: dict[str, Any] = {
            f"{kind}_token_logprobs": [self._triple(None if t.score is None else t.score.logprob, t.id) for t in tokens]
        }
        if self.top:
            fields[f"{kind}_top_logprobs"] = [
                None if score is None else [self._triple(value, id_) for id_, value in score.top] for score in scores
            ]
        if self.listed:
            fields[f"{kind}_token_ids_logprobs"] = [
                None
                if score is None
                else [self._triple(value, id_) for id_, value in zip(self.listed, score.listed, strict=True)]
                for score in scores
            ]
        return fields

    def _triple(self, logprob: float | None, token_id: int) -> tuple[float | None, int, str | None]:
        text = None if self.bytes_of is None else self.bytes_of(token_id).decode(errors="replace")
        return (None if logprob is None else finite(logprob), token_id, text)
